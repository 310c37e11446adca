"""heed.torch: PyTorch's semantics, gradients by gradcheck, no copies. Skipped where PyTorch is not installed."""

import doctest
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import heed  # noqa: E402
import heed.torch as ht  # noqa: E402
import plain  # noqa: E402
from torch.autograd import gradcheck  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20261115)


def three(q_shape, kv_shape=None, dtype=torch.float32, e=None, grad=False):
    kv_shape = kv_shape or q_shape
    v_shape = (*kv_shape[:-1], e or kv_shape[-1])
    return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in (q_shape, kv_shape, v_shape)]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_comes_back(dtype):
    q, k, v = three((2, 4, 5, 8), (2, 2, 7, 8), dtype)
    out, lse = heed.attend(q, k, v, causal=True, lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = plain.attention(*(x.double().numpy() for x in (q, k, v)), causal=True)["out"]
    assert np.abs(out.double().numpy() - expected).max() < TOLERANCE[dtype]
    g = heed.attend_backward(q, k, v, out, lse, torch.ones_like(out), causal=True)
    assert g.dq.dtype == dtype and g.dk.shape == k.shape and g.dbias is None


def test_no_copies():
    q, k, v = three((2, 4, 5, 8))
    out = torch.empty(2, 5, 4, 8).transpose(1, 2)
    address = out.data_ptr()
    assert heed.attend(q, k, v, out=out) is out and out.data_ptr() == address
    assert torch.equal(out, heed.attend(q, k, v))
    k.fill_(0)  # the same object, new numbers: they are read where they lie
    assert torch.allclose(heed.attend(q, k, v), v.mean(2, keepdim=True).expand_as(v), atol=1e-6)
    shared = torch.from_numpy(np.zeros((2, 4, 5, 8), np.float32))
    heed.attend(q.numpy(), k.numpy(), v.numpy(), out=shared.numpy())
    assert torch.equal(shared, heed.attend(q, k, v))
    q_row = torch.randn(1, 1, 1, 64)
    million = q_row.expand(1, 1, 1 << 22, 64)  # a gigabyte, were it copied
    assert torch.allclose(heed.attend(q_row, million, million), q_row, atol=1e-2)


def test_new_tensors_are_ordinary_ones():
    q, k, v = three((2, 4, 5, 8))
    out = heed.attend(q, k, v)
    assert type(out) is torch.Tensor and out.is_contiguous() and not out.requires_grad and out.device.type == "cpu"
    assert out.untyped_storage().nbytes() == 4 * out.numel() and out.data_ptr() % 16 == 0
    assert out.resize_(3, 4, 5, 8).shape == (3, 4, 5, 8)  # the memory is PyTorch's
    kept = heed.attend(q, k, v)
    expected, address = kept.clone(), kept.data_ptr()
    view = kept[0]
    del kept
    others = [heed.attend(q, k, v) for _ in range(20)]
    assert torch.equal(view, expected[0]) and address not in {x.data_ptr() for x in others}
    with torch.inference_mode():
        assert heed.attend(q, k, v).is_inference() == torch.empty(1).is_inference()
    assert heed.attend(q[:, :, :0], k, v).shape == (2, 4, 0, 8)


def test_the_same_without_functions_of_pytorchs_own():
    """Where they are not found (here as no library is where PyTorch is said to be), Python is asked instead."""
    program = """
import torch, heed, heed.torch
torch._C.__file__ = "/nowhere/torch.so"
x = torch.ones(2, 3, 4, 8, dtype=torch.bfloat16)
out, lse = heed.attend(x, x, x, lse=True)
assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32 and torch.equal(out, x)
assert heed.attend(x[:, :, :0], x, x).shape == (2, 3, 0, 8)
assert torch.equal(heed.torch.scaled_dot_product_attention(x, x, x), x)
with torch.autocast("cpu"):
    assert heed.torch.scaled_dot_product_attention(x.float(), x.float(), x.float()).dtype == torch.bfloat16
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_mixed_libraries_and_strides():
    q, k, v = three((2, 4, 5, 8), (2, 2, 7, 8))
    expected = heed.attend(q, k, v)
    assert np.array_equal(heed.attend(q.numpy(), k, v.numpy()), expected.numpy())
    wide = torch.randn(2, 4, 5, 16)
    assert torch.allclose(heed.attend(wide[..., ::2], k, v), heed.attend(wide[..., ::2].contiguous(), k, v), atol=1e-6)


def test_tensors_that_record_gradients_are_refused_where_they_would_be_lost():
    q, k, v = three((1, 1, 2, 4), grad=True)
    with pytest.raises(ValueError, match=r"\[attend\] q: expected a tensor that needs no gradient"):
        heed.attend(q, k, v)
    with torch.no_grad():
        heed.attend(q, k, v)
    assert heed.attend(q.detach(), k.detach(), v.detach()).grad_fn is None


def test_tensors_elsewhere_are_refused():
    q, k, v = three((1, 1, 2, 4))
    with pytest.raises((ValueError, RuntimeError, BufferError)):
        heed.attend(q.to("meta"), k, v)
    with pytest.raises((ValueError, RuntimeError, BufferError)):
        heed.attend(q.to_sparse(), k, v)
    with pytest.raises(ValueError, match="complex64"):
        heed.attend(q.to(torch.complex64), k, v)


def test_lazy_negation_is_refused():
    x = torch.randn(1, 1, 3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match=r"\[attend\] q: .*resolve_neg"):
        heed.attend(x, x, x)
    heed.attend(*[x.resolve_neg()] * 3)


def test_older_pytorch():
    """Before 2.10 there is no table of C functions: the same through __dlpack__, gradients included."""
    script = """
import torch
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
import heed.torch
x = torch.randn(2, 3, 5, 8, requires_grad=True)
out = heed.torch.scaled_dot_product_attention(x, x, x)
expected = torch.nn.functional.scaled_dot_product_attention(x, x, x)
assert torch.allclose(out, expected, atol=1e-5)
a, = torch.autograd.grad(out.sum(), x)
b, = torch.autograd.grad(expected.sum(), x)
assert torch.allclose(a, b, atol=1e-5)
with torch.no_grad():
    assert heed.attend(x.bfloat16(), x.bfloat16(), x.bfloat16()).dtype == torch.bfloat16
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def double(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck_of_rotations():
    cosine, sine = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    for pairing in ("halves", "interleaved"):
        assert gradcheck(lambda x, p=pairing: ht.rotate(x, cosine, sine, pairing=p), (double(2, 2, 5, 7),))
    with pytest.raises(ValueError, match="need no gradient"):
        ht.rotate(double(2, 2, 5, 7), cosine.requires_grad_(), sine)


def test_gradcheck_of_gated_linear_attention():
    q, k, v, s = double(1, 2, 5, 3), double(1, 2, 5, 3), double(1, 2, 5, 4), double(1, 2, 3, 4)
    beta = torch.rand(1, 2, 5, dtype=torch.float64, requires_grad=True)
    for shape in ((1, 2, 5), (1, 2, 5, 3)):
        decay = (-torch.rand(shape, dtype=torch.float64)).requires_grad_()

        def call(q, k, v, decay, beta, s):
            options = {"rule": "delta", "feature": "identity", "normalise": False}
            out, state = ht.linear_attention(
                q, k, v, initial=(s, None), final=True, log_decay=decay, beta=beta, **options
            )
            return out, state.s

        assert gradcheck(call, (q, k, v, decay, beta, s))


def test_gradcheck_of_every_option():
    q, k, v = double(2, 2, 3, 4), double(2, 1, 5, 4), double(2, 1, 5, 3)
    bias, slopes, sinks = double(1, 2, 1, 5), double(2, 2), double(2)
    options = {
        "causal": True,
        "window": (3, -1),
        "softcap": 2.0,
        "scale": 0.7,
        "key_lengths": [5, 3],
        "allow": torch.rand(2, 1, 3, 5) < 0.9,
        "dropout": 0.3,
        "seed": 5,
    }

    def call(q, k, v, bias, slopes, sinks):
        out, lse = ht.attend(q, k, v, bias=bias, alibi_slopes=slopes, sinks=sinks, lse=True, **options)
        return out, lse

    assert gradcheck(call, (q, k, v, bias, slopes, sinks))
    assert gradcheck(lambda q, k, v: ht.attend(q, k, v, lse=True)[1], (q, k, v))  # through lse alone
    assert gradcheck(
        lambda q, k, v: ht.attend(q.transpose(1, 2), k.expand(2, 2, 5, 4), v.expand(2, 2, 5, 3)),
        (double(2, 3, 2, 4), k, v),
    )


def test_lists_beside_tensors_that_record_gradients():
    q, k, v = three((1, 4, 3, 8), grad=True)
    slopes = heed.alibi_slopes(4)
    out = ht.attend(q, k, v, alibi_slopes=slopes, sinks=np.zeros(4), key_lengths=[2], causal=True)
    out.sum().backward()
    with torch.no_grad():
        expected = heed.attend(q, k, v, alibi_slopes=slopes, sinks=[0.0] * 4, key_lengths=[2], causal=True)
    assert torch.equal(out.detach(), expected) and q.grad.abs().sum() > 0
    out, _ = ht.infini_attention(q, k, v, torch.zeros(4, requires_grad=True), segment=2, alibi_slopes=slopes)
    out.sum().backward()


def test_gradcheck_of_the_others():
    table = heed.rope_table(heed.Rope(4))
    assert gradcheck(lambda x: ht.rope(x, table, first=3), (double(1, 2, 3, 5),))
    q, k, v = double(1, 2, 4, 3), double(1, 1, 4, 3), double(1, 1, 4, 2)
    s, z = double(1, 1, 3, 2), torch.rand(1, 1, 3, dtype=torch.float64, requires_grad=True)

    def linear(q, k, v, s, z):
        out, state = ht.linear_attention(q, k, v, initial=(s, z), final=True)
        return out, state.s, state.z

    assert gradcheck(linear, (q, k, v, s, z))
    assert gradcheck(lambda *x: ht.linear_attention(*x, normalise=False, causal=False), (q, k, v))
    decay = torch.tensor([0.9, 0.4], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda q, k, v, decay: ht.linear_attention(q, k, v, decay=decay), (q, k, v, decay))

    def infini(q, k, v, gates, sinks):
        first, state = ht.infini_attention(q, k, v, gates, segment=2, sinks=sinks)
        second, state = ht.infini_attention(
            q * 2, k * 0.5, v + 1, gates, state, segment=2, sinks=sinks, update="delta", memory_q=q, memory_k=k
        )
        return first, second, state.m, state.z

    assert gradcheck(infini, (q, k, v, double(2), double(2)))


def test_infini_state_is_a_value():
    q, k, v, gates = double(1, 1, 4, 3), double(1, 1, 4, 3), double(1, 1, 4, 2), double(1)
    _, state = ht.infini_attention(q, k, v, gates, segment=2)
    once, _ = ht.infini_attention(q, k, v, gates, state, segment=2)
    again, _ = ht.infini_attention(q, k, v, gates, state, segment=2)
    assert torch.equal(once, again)
    again.sum().backward(retain_graph=True)
    through, q.grad = q.grad.clone(), None
    cut, _ = ht.infini_attention(q, k, v, gates, state.detach(), segment=2)
    cut.sum().backward()
    k_only = k.grad.clone()
    assert through.shape == q.grad.shape and k_only.abs().sum() > 0
    with torch.no_grad():
        out, state = ht.infini_attention(q, k, v, gates, segment=3)  # a token is left over
    assert state.memory.pending == 1 and state.m.grad_fn is None
    with pytest.raises(ValueError, match="pending"):
        ht.infini_attention(q, k, v, gates, state, segment=3)[0].sum().backward()


@pytest.mark.parametrize(
    "name", ["attend", "scaled_dot_product_attention", "flex_attention", "rope", "linear_attention", "infini_attention"]
)
def test_docstring_examples(name):
    test = doctest.DocTestParser().get_doctest(
        getattr(ht, name).__doc__, {"heed": heed, "torch": torch}, name, None, None
    )
    report = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert tried and not failed, "".join(report)


def resident_kib():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def test_no_leak_of_tensors_or_graphs():
    q, k, v = three((1, 2, 4, 8), grad=True)

    def call():
        out = ht.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        with torch.no_grad():
            heed.attend(q, k, v, lse=True)

    for _ in range(1000):
        call()
    before = resident_kib()
    for _ in range(20_000):
        call()
    assert resident_kib() - before < 2048


def test_threads_with_gradients():
    q, k, v = three((2, 2, 9, 8), grad=True)
    expected = torch.autograd.grad(sdpa(q, k, v).sum(), (q, k, v))
    wrong = []

    def work():
        for _ in range(20):
            got = torch.autograd.grad(ht.scaled_dot_product_attention(q, k, v).sum(), (q, k, v))
            if not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, expected)):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(reentrant):
    from torch.utils.checkpoint import checkpoint

    def sdpa(x):
        return heed.torch.scaled_dot_product_attention(x, x, x, is_causal=True, dropout_p=0.3)

    def linear(x):
        return heed.torch.linear_attention(x, x, x)

    def infini(x):
        return heed.torch.infini_attention(x, x, x, torch.zeros(3))[0]

    torch.manual_seed(1)
    for function in (sdpa, linear, infini):
        a = torch.randn(2, 3, 5, 8, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        torch.manual_seed(2)
        function(a).sin().sum().backward()
        torch.manual_seed(2)
        checkpoint(function, b, use_reentrant=reentrant).sin().sum().backward()
        assert torch.equal(a.grad, b.grad)


def test_who_writes_into_a_mask_before_the_way_back_is_told():
    x = torch.randn(2, 3, 5, 8, requires_grad=True)
    allow, lengths = torch.ones(5, 5, dtype=torch.bool).tril(), torch.tensor([5, 3])
    out = heed.torch.scaled_dot_product_attention(x, x, x, attn_mask=allow)
    allow.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = heed.torch.attend(x, x, x, key_lengths=lengths)
    lengths.fill_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
