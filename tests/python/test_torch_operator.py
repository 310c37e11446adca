"""heed.torch under those who follow what is computed: compilers, tracers, transforms, modes, forward differentiation,
second derivatives, classes of tensors of their own. Skipped where PyTorch is not installed."""

import pytest

torch = pytest.importorskip("torch")

import heed  # noqa: E402
import heed.torch as ht  # noqa: E402

from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402


def close(a, b):
    return torch.allclose(a, b, atol=2e-6)


@pytest.fixture
def three():
    torch.manual_seed(20261116)
    return torch.randn(2, 4, 3, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)


@pytest.mark.parametrize("bias", [causal_lower_right, causal_upper_left])
def test_causal_biases(three, bias):
    assert close(ht.scaled_dot_product_attention(*three, bias(3, 7)), sdpa(*three, bias(3, 7)))
    with pytest.raises(ValueError, match="CausalBias of 3 queries and 7 keys"):
        ht.scaled_dot_product_attention(*three, bias(4, 7))
    with pytest.raises(ValueError):
        ht.scaled_dot_product_attention(*three, bias(3, 7), is_causal=True)
    with pytest.raises(heed.Error, match="bias: expected"):
        heed.attend(*three, bias=bias(3, 7))


def test_classes_of_tensors(three):
    class Named(torch.Tensor):
        pass

    class Opaque(torch.Tensor):
        @staticmethod
        def __new__(cls, shape):
            return torch.Tensor._make_wrapper_subclass(cls, shape)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return f"{func}"

    q, k, v = three
    for out in (ht.scaled_dot_product_attention(q.as_subclass(Named), k, v), ht.attend(q.as_subclass(Named), k, v)):
        assert type(out) is Named and close(out.as_subclass(torch.Tensor), sdpa(q, k, v))
    assert close(ht.rope(q.as_subclass(Named), heed.rope_table(heed.Rope(8))), ht.rope(q, heed.rope_table(heed.Rope(8))))
    with pytest.raises(heed.Error, match="numbers in memory"):
        heed.attend(Opaque((2, 4, 3, 8)), k, v)
    with pytest.raises(heed.Error, match="expected plain ones, got Opaque"):
        ht.rope(Opaque((2, 4, 3, 8)), heed.rope_table(heed.Rope(8)))


@pytest.mark.filterwarnings("ignore")
def test_what_has_no_numbers_by_strides_is_named(three):
    q, k, v = three
    for other, what in ((q.to_sparse(), "layout torch.sparse_coo"), (torch.nested.nested_tensor([q[0], k[0]]), "nested")):
        with pytest.raises(heed.Error, match=rf"\[attend\] q: expected a tensor with .* by strides, got .*{what}"):
            heed.attend(other, k, v)
    with pytest.raises(heed.Error, match="layout torch.sparse_coo on device cpu"):
        ht.scaled_dot_product_attention(q.to_sparse(), k, v)
    for given in ((1, k, v), (q, None, v), (q, k, [[1.0]])):
        with pytest.raises(TypeError, match="query, key, value: expected tensors, got"):
            ht.scaled_dot_product_attention(*given)


@pytest.mark.filterwarnings("ignore")
def test_the_compiler_that_is_not_named(three):
    """torch.compile's own back end writes code that calls the operator by its schema."""
    q, k, v = three
    compiled = torch.compile(lambda q: ht.scaled_dot_product_attention(q, k, v, is_causal=True), fullgraph=True)
    assert close(compiled(q), sdpa(q, k, v, is_causal=True))


def test_symbolic_traces_and_functionalize(three):
    q, k, v = three

    class Layer(torch.nn.Module):
        def forward(self, q):
            return ht.scaled_dot_product_attention(q, q, q, is_causal=True)

    graph = torch.fx.symbolic_trace(Layer())
    assert "scaled_dot_product_attention" in graph.code
    assert torch.equal(graph(q), Layer()(q))
    assert close(torch.func.functionalize(lambda q: ht.scaled_dot_product_attention(q, k, v))(q), sdpa(q, k, v))


def test_a_penalty_on_the_gradient_is_not_dropped(three):
    q, k, v = three
    q.requires_grad_()
    out = ht.scaled_dot_product_attention(q, k, v)
    (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        (out.sum() + g.pow(2).sum()).backward()
    # A graph that nobody goes back through twice is no mistake.
    out = ht.attend(q, k, v)
    (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    reference = torch.autograd.grad(sdpa(q, k, v).sum(), q)[0]
    assert close(g, reference)
    x = torch.randn(1, 1, 4, 2, requires_grad=True)
    (g,) = torch.autograd.grad(ht.linear_attention(x, x, x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        g.pow(2).sum().backward()
    gates = torch.zeros(1, requires_grad=True)
    (g,) = torch.autograd.grad(ht.infini_attention(x, x, x, gates, segment=2)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        g.pow(2).sum().backward()


def test_rope_has_derivatives_of_any_order():
    table = heed.rope_table(heed.Rope(4))
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: ht.rope(x, table, first=3).sin(), (x,))


def test_tangents_are_not_lost(three):
    q, k, v = three
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        table = heed.rope_table(heed.Rope(8))
        for call in (
            lambda: ht.scaled_dot_product_attention(dual, k, v),
            lambda: ht.attend(dual, k, v),
            lambda: ht.rope(dual, table),
            lambda: ht.linear_attention(dual, dual, dual),
            lambda: ht.infini_attention(dual, dual, dual, torch.zeros(4)),
        ):
            with pytest.raises(heed.Error, match="tangent"):
                call()
        assert close(ht.attend(q, k, v), sdpa(q, k, v))  # none of these has one


@pytest.mark.filterwarnings("ignore")
def test_tracers_get_an_operator(three):
    q, k, v = three
    other = torch.randn_like(q)

    def f(q, k, v):
        return ht.scaled_dot_product_attention(q, k, v, is_causal=True)

    traced = torch.jit.trace(f, (q, k, v))
    assert "heed::attend" in str(traced.graph)
    assert close(traced(other, k, v), sdpa(other, k, v, is_causal=True))
    graph = make_fx(f)(q, k, v)
    assert "heed.attend" in graph.code
    assert close(graph(other, k, v), sdpa(other, k, v, is_causal=True))
    with pytest.raises(heed.Error, match="a tracer, a mode or a transform"):
        make_fx(lambda x: ht.rope(x, heed.rope_table(heed.Rope(8))))(q)


@pytest.mark.filterwarnings("ignore")
def test_compile_and_export(three):
    q, k, v = three

    def f(q, k, v):
        return ht.scaled_dot_product_attention(q, k, v, is_causal=True).relu()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    a, b = q.clone().requires_grad_(), q.clone().requires_grad_()
    compiled(a, k, v).sum().backward()
    sdpa(b, k, v, is_causal=True).relu().sum().backward()
    assert close(a.grad, b.grad)
    drops = torch.compile(
        lambda q: ht.scaled_dot_product_attention(q, k, v, dropout_p=0.5), fullgraph=True, backend="aot_eager"
    )
    assert not torch.equal(drops(q), drops(q))

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return ht.attend(q, k, v, causal=True, window=(2, 0), pattern="causal & strided(2)")

    program = torch.export.export(Layer(), (q, k, v))
    assert "heed.attend" in str(program.graph)
    assert torch.equal(program.module()(q, k, v), Layer()(q, k, v))


def test_transforms(three):
    q, k, v = three

    def sum_of(function):
        return lambda q, k, v: function(q, k, v).sin().sum()

    ours = torch.func.grad(sum_of(ht.scaled_dot_product_attention), argnums=(0, 1, 2))(q, k, v)
    theirs = torch.func.grad(sum_of(sdpa), argnums=(0, 1, 2))(q, k, v)
    assert all(map(close, ours, theirs))
    out, back = torch.func.vjp(lambda q: ht.scaled_dot_product_attention(q, k, v), q)
    assert close(back(torch.ones_like(out))[0], torch.func.vjp(lambda q: sdpa(q, k, v), q)[1](torch.ones_like(out))[0])
    many, values = torch.randn(5, *q.shape), torch.randn(*v.shape, 5)
    mapped = torch.vmap(lambda q, v: ht.scaled_dot_product_attention(q, k, v), in_dims=(0, -1))(many, values)
    assert close(mapped, torch.stack([sdpa(many[n], k, values[..., n]) for n in range(5)]))
    masks = torch.rand(5, 3, 7) > 0.3
    mapped = torch.vmap(lambda q, m: ht.scaled_dot_product_attention(q, k, v, m))(many, masks)
    each = [ht.scaled_dot_product_attention(many[n], k, v, masks[n]) for n in range(5)]
    assert close(mapped, torch.stack(each))
    jacobian = torch.func.jacrev(lambda q: ht.scaled_dot_product_attention(q, k, v))(q)
    assert close(jacobian, torch.func.jacrev(lambda q: sdpa(q, k, v))(q))
    with pytest.raises(heed.Error, match="tangent"):
        torch.func.jvp(lambda q: ht.scaled_dot_product_attention(q, k, v), (q,), (q,))
    per_sample = torch.vmap(torch.func.grad(sum_of(ht.scaled_dot_product_attention)), in_dims=(0, None, None))(many, k, v)
    assert close(per_sample, torch.stack([torch.func.grad(sum_of(sdpa))(x, k, v) for x in many]))


def test_many_gradients_at_once(three):
    """Jacobians by is_grads_batched, which maps the backward pass."""
    q, k, v = (x.double().requires_grad_() for x in three)
    bias = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    out = ht.scaled_dot_product_attention(q, k, v, bias)
    upstream = torch.randn(5, *out.shape, dtype=torch.float64)
    many = torch.autograd.grad(out, (q, k, v, bias), upstream, is_grads_batched=True, retain_graph=True)
    for n, one in enumerate(upstream):
        for a, b in zip(many, torch.autograd.grad(out, (q, k, v, bias), one, retain_graph=True)):
            assert torch.allclose(a[n], b)


def test_fake_and_meta_tensors(three):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.empty(2, 4, 3, 8, device="meta", dtype=torch.bfloat16)
    out, lse = ht.attend(x, x, x[..., :5], lse=True)
    assert out.shape == (2, 4, 3, 5) and out.is_meta and lse.dtype == torch.float32
    assert ht.scaled_dot_product_attention(x, x, x).shape == x.shape
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in three]
        assert ht.scaled_dot_product_attention(*fakes).shape == three[0].shape


def test_flops_are_pytorchs(three):
    from torch.utils.flop_counter import FlopCounterMode

    def count(function):
        with FlopCounterMode(display=False) as counter:
            function(three[0].clone().requires_grad_(), *three[1:]).sum().backward()
        return counter.get_total_flops()

    assert count(ht.scaled_dot_product_attention) == count(sdpa) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["plain", "causal", "bias", "sinks"])
def test_opcheck(three, case):
    q, k, v = (x.double() for x in three)
    small = {"dtype": torch.float64, "requires_grad": True}
    options = {
        "plain": {},
        "causal": {"causal": True, "left": 2},
        "bias": {"bias": torch.randn(2, 1, 3, 7, **small)},
        "sinks": {"sinks": torch.randn(4, **small), "alibi_slopes": torch.rand(4, **small)},
    }[case]
    results = torch.library.opcheck(torch.ops.heed.attend.default, (q.requires_grad_(), k, v), options)
    assert set(results.values()) == {"SUCCESS"}


def test_jagged_tensors():
    torch.manual_seed(0)
    lengths = [3, 5, 2]
    rows = [[torch.randn(n, heads, 8) for n in lengths] for heads in (4, 2, 2)]
    q, k, v = (torch.nested.nested_tensor(x, layout=torch.jagged, requires_grad=True) for x in rows)
    for causal in (False, True):
        out = ht.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True
        )
        gradients = torch.autograd.grad(out.values().sin().sum(), (q, k, v))
        for n, one in enumerate(out.unbind()):
            each = [x[n].clone().requires_grad_() for x in rows]
            expected = sdpa(*(x.transpose(0, 1)[None] for x in each), is_causal=causal, enable_gqa=True)
            assert close(one, expected[0])
            for whole, part in zip(gradients, torch.autograd.grad(expected.sin().sum(), each)):
                assert close(whole.unbind()[n], part)
    with pytest.raises(heed.Error, match="attn_mask: expected None beside jagged"):
        ht.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, q, q)), attn_mask=torch.ones(1, 1))


def test_jagged_tensors_with_dropout_and_autocast():
    torch.manual_seed(0)
    rows = [torch.randn(n, 4, 8) for n in (3, 5, 2)]
    q, k, v = (torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True) for _ in range(3))
    flat = [x.transpose(1, 2) for x in (q, k, v)]

    def dropped(seed):
        torch.manual_seed(seed)
        return ht.scaled_dot_product_attention(*flat, dropout_p=0.5)

    assert torch.equal(dropped(1).values(), dropped(1).values())
    assert not torch.equal(dropped(1).values(), dropped(2).values())
    # Inverted dropout keeps the mean: many draws come near what nothing is dropped of.
    mean = sum(dropped(seed).values().detach() for seed in range(400)) / 400
    assert (mean - ht.scaled_dot_product_attention(*flat).values()).abs().mean() < 0.1
    dropped(1).values().sum().backward()
    assert all(x.grad is not None and x.grad.values().isfinite().all() for x in (q, k, v))
    with torch.autocast("cpu", torch.bfloat16):
        narrow = ht.scaled_dot_product_attention(*flat)
    assert narrow.dtype == torch.bfloat16
    assert torch.allclose(narrow.values().float(), ht.scaled_dot_product_attention(*flat).values(), atol=0.05)
