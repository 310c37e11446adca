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


SHAPES = [
    ((2, 4, 7, 16), None),
    ((3, 7, 16), None),
    ((7, 16), None),
    ((2, 3, 4, 7, 16), None),
    ((2, 4, 7, 16), (2, 4, 11, 16)),
    ((2, 4, 11, 16), (2, 4, 7, 16)),
    ((2, 4, 7, 16), (1, 4, 9, 16)),
    ((2, 4, 7, 16), (2, 1, 9, 16)),
    ((2, 4, 0, 16), (2, 4, 3, 16)),
    ((0, 4, 2, 16), (0, 4, 3, 16)),
]


def compare(arguments, options, dtype=torch.float32, ours=None):
    """Results and gradients of both, for the tensors among the arguments that want gradients."""
    wanted = [x for x in [*arguments, *(ours or options).values()] if isinstance(x, torch.Tensor) and x.requires_grad]
    expected = sdpa(*arguments, **options)
    got = ht.scaled_dot_product_attention(*arguments, **options)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    bound = TOLERANCE[dtype]
    assert torch.allclose(got, expected, atol=bound, rtol=bound), (got - expected).abs().max()
    upstream = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, wanted, upstream), torch.autograd.grad(expected, wanted, upstream)):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.allclose(a, b, atol=4 * bound, rtol=4 * bound), (a - b).abs().max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("q_shape, kv_shape", SHAPES)
def test_sdpa_shapes(q_shape, kv_shape, causal):
    compare(three(q_shape, kv_shape, e=12, grad=True), {"is_causal": causal})


@pytest.mark.parametrize("dtype", TYPES)
def test_sdpa_types(dtype):
    compare(three((2, 3, 9, 16), dtype=dtype, grad=True), {"is_causal": True, "scale": 0.3}, dtype)


@pytest.mark.parametrize("mask_shape", [(7, 9), (1, 9), (4, 7, 9), (2, 1, 7, 9), (2, 4, 1, 9), (1, 1, 1, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_sdpa_masks(mask_shape, kind):
    arguments = three((2, 4, 7, 16), (2, 4, 9, 16), grad=True)
    mask = torch.rand(mask_shape) < 0.7 if kind == "bool" else torch.randn(mask_shape).requires_grad_()
    if kind == "bool":
        mask[..., 0, :] = False  # a row that sees nothing
    compare(arguments, {"attn_mask": mask})


def test_sdpa_mask_with_more_axes():
    compare(three((2, 3, 4, 5, 8), grad=True), {"attn_mask": torch.rand(3, 1, 5, 5) < 0.6})
    compare(three((2, 3, 4, 5, 8), grad=True), {"attn_mask": torch.randn(2, 1, 4, 5, 5)})


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_sdpa_grouped_heads(kv_heads):
    compare(three((2, 6, 7, 8), (2, kv_heads, 9, 8), grad=True), {"enable_gqa": True, "is_causal": True})
    q, k, _ = three((2, 6, 7, 8), (2, kv_heads, 9, 8), grad=True)
    compare([q, k, torch.randn(2, 3, 9, 8, requires_grad=True)], {"enable_gqa": True})


def test_sdpa_layout_of_bthd_memory_is_kept():
    q, k, v = (torch.randn(2, 7, 4, 8).transpose(1, 2) for _ in range(3))
    out = ht.scaled_dot_product_attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous() and torch.allclose(out, sdpa(q, k, v), atol=1e-6)
    q.requires_grad_()
    out = ht.scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    assert out.transpose(1, 2).is_contiguous() and q.grad.shape == q.shape


def test_sdpa_dropout():
    q, k, v = three((4, 4, 64, 16), grad=True)
    torch.manual_seed(1)
    first = ht.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    second = ht.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(first, ht.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    assert not torch.equal(first, second)
    ones = torch.ones_like(v)
    mean = ht.scaled_dot_product_attention(q * 0, k, ones, dropout_p=0.5).mean()
    assert abs(mean.item() - 1) < 0.02  # kept weights count for those that are not
    nothing = ht.scaled_dot_product_attention(q, k, v, dropout_p=1.0)
    nothing.sum().backward()
    assert not nothing.any() and not v.grad.any()
    assert torch.equal(
        ht.scaled_dot_product_attention(q, k, v, dropout_p=0.0), ht.scaled_dot_product_attention(q, k, v)
    )
    with pytest.raises(ValueError, match="dropout_p"):
        ht.scaled_dot_product_attention(q, k, v, dropout_p=1.5)


def test_sdpa_refuses_what_pytorch_refuses():
    q, k, v = three((2, 4, 7, 16))
    for options in (
        {"attn_mask": torch.ones(7, 7, dtype=torch.bool), "is_causal": True},
        {"attn_mask": torch.ones(7, 6, dtype=torch.bool)},
    ):
        with pytest.raises(RuntimeError):
            sdpa(q, k, v, **options)
        with pytest.raises(ValueError):
            ht.scaled_dot_product_attention(q, k, v, **options)
    with pytest.raises((ValueError, RuntimeError)):
        ht.scaled_dot_product_attention(q, k[:, :2], v[:, :2])


def test_sdpa_modes():
    q, k, v = three((2, 4, 7, 16), grad=True)
    with torch.no_grad():
        assert ht.scaled_dot_product_attention(q, k, v).grad_fn is None
    with torch.inference_mode():
        assert torch.allclose(ht.scaled_dot_product_attention(q, k, v), sdpa(q, k, v), atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert ht.scaled_dot_product_attention(q, k, v).dtype == sdpa(q, k, v).dtype == torch.bfloat16
    parameter = torch.nn.Parameter(torch.randn(2, 4, 7, 16))
    ht.scaled_dot_product_attention(parameter, k, v).sum().backward()
    assert parameter.grad is not None


def double(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


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


def test_gradcheck_of_sdpa():
    q, k, v, mask = double(2, 2, 3, 4), double(2, 2, 5, 4), double(2, 2, 5, 3), double(1, 3, 5)
    assert gradcheck(lambda *x: ht.scaled_dot_product_attention(*x), (q, k, v, mask))
    assert gradcheck(lambda *x: ht.scaled_dot_product_attention(*x, is_causal=True), (q, k, v))


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
    "name", ["attend", "scaled_dot_product_attention", "rope", "linear_attention", "infini_attention"]
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
