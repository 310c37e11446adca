"""heed.torch.scaled_dot_product_attention against PyTorch's own. Skipped where PyTorch is not installed."""

import pytest

torch = pytest.importorskip("torch")

import heed.torch as ht  # noqa: E402
from test_torch import TOLERANCE, TYPES, double, seeded, three  # noqa: E402, F401
from torch.autograd import gradcheck  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

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
    ((2, 4, 7, 0), (2, 4, 9, 0)),
    ((2, 0, 7, 8), (2, 0, 9, 8)),
    ((0, 0, 0, 0), None),
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


@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_values_without_columns(causal):
    compare(three((2, 4, 7, 8), (2, 4, 9, 8), e=0, grad=True), {"is_causal": causal})
    q, k, _ = three((2, 4, 7, 0), (2, 4, 9, 0))
    out, lse = ht.attend(q, k, k, lse=True)
    assert out.shape == (2, 4, 7, 0) and torch.allclose(lse, torch.full((2, 4, 7), 9.0).log())


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


MISTAKES = {
    "mask and causal": lambda f, q: f(q, q, q, attn_mask=torch.ones(7, 7, dtype=torch.bool), is_causal=True),
    "mask of another size": lambda f, q: f(q, q, q, attn_mask=torch.ones(7, 6, dtype=torch.bool)),
    "mask with another batch": lambda f, q: f(q, q, q, attn_mask=torch.ones(3, 1, 7, 7, dtype=torch.bool)),
    "mask with more axes": lambda f, q: f(q, q, q, attn_mask=torch.ones(1, 2, 4, 7, 7, dtype=torch.bool)),
    "mask of integers": lambda f, q: f(q, q, q, attn_mask=torch.ones(7, 7, dtype=torch.int64)),
    "other heads": lambda f, q: f(q, q[:, :2], q[:, :2]),
    "other head size": lambda f, q: f(q, q[..., :8], q),
    "other batch": lambda f, q: f(q, torch.cat([q, q[:1]]), q),
    "other type": lambda f, q: f(q, q.double(), q),
    "integers": lambda f, q: f(q.long(), q.long(), q.long()),
    "one axis": lambda f, q: f(q[0, 0, 0], q[0, 0, 0], q[0, 0, 0]),
    "heads that do not divide": lambda f, q: f(q, q[:, :3], q[:, :3], enable_gqa=True),
    "dropout above 1": lambda f, q: f(q, q, q, dropout_p=1.5),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sdpa_mistakes_have_pytorchs_class(mistake):
    (q, _, _) = three((2, 4, 7, 16))
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        MISTAKES[mistake](sdpa, q)
    with pytest.raises(ValueError) as ours:
        MISTAKES[mistake](ht.scaled_dot_product_attention, q)
    assert isinstance(ours.value, theirs.type), theirs.value


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


def test_gradcheck_of_sdpa():
    q, k, v, mask = double(2, 2, 3, 4), double(2, 2, 5, 4), double(2, 2, 5, 3), double(1, 3, 5)
    assert gradcheck(lambda *x: ht.scaled_dot_product_attention(*x), (q, k, v, mask))
    assert gradcheck(lambda *x: ht.scaled_dot_product_attention(*x, is_causal=True), (q, k, v))


LARGE = {
    "causal": lambda i, j, b: j <= i,
    "from the end": lambda i, j, b: j <= i + 133,
    "window": lambda i, j, b: (i - j).abs() < 20,
    "padding": lambda i, j, b: j < 100 + 90 * b,
    "causal and padding": lambda i, j, b: (j <= i) & (j >= 70 * b),
    "blocks": lambda i, j, b: (i // 64 + j // 64) % 3 == 0,
    "a corner": lambda i, j, b: (i > 190) & (j > 320),
}


@pytest.mark.parametrize("name", LARGE)
def test_sdpa_large_masks(name):
    """Tiles that a mask hides are left out."""
    i, j, b = torch.meshgrid(torch.arange(200), torch.arange(333), torch.arange(2), indexing="ij")
    mask = LARGE[name](i, j, b).permute(2, 0, 1)[:, None]
    for each in (mask, mask[:1, 0], mask.mT.contiguous().mT):
        compare(three((2, 4, 200, 16), (2, 4, 333, 16), grad=True), {"attn_mask": each})
