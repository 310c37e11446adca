"""heed.torch.flex_attention against PyTorch's, run without its compiler. Skipped where PyTorch is not installed."""

import pytest

torch = pytest.importorskip("torch")

import heed  # noqa: E402
import heed.torch as ht  # noqa: E402
from heed import _torch_flex  # noqa: E402

flex = pytest.importorskip("torch.nn.attention.flex_attention")

T, S = 37, 37
CAUSAL = lambda b, h, q, k: q >= k  # noqa: E731


@pytest.fixture(autouse=True)
def setting(monkeypatch):
    torch.manual_seed(20261116)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def block_mask(mask_mod, batch=None, heads=None, rows=T, keys=S):
    return flex.create_block_mask(mask_mod, batch, heads, rows, keys, device="cpu", BLOCK_SIZE=16)


def reference(query, key, value, score_mod=None, mask_mod=None, scale=None):
    """The definition, with all numbers in memory."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    sizes = (*query.shape[:3], key.shape[2])
    indices = [torch.arange(n) for n in sizes]
    for mod, is_mask in ((score_mod, False), (mask_mod, True)):
        if mod is None:
            continue
        function = (lambda s, *x, mod=mod: torch.where(mod(*x), s, -torch.inf)) if is_mask else mod
        for axis in (3, 2, 1, 0):
            dims = tuple(0 if n == axis else None for n in range(4))
            function = torch.vmap(function, in_dims=(0, *dims))
        scores = function(scores, *indices)
    weights = torch.softmax(scores, -1).nan_to_num(0)
    return weights @ value, torch.logsumexp(scores, -1)


def check(score_mod=None, mask_mod=None, captured=(), kv_heads=4, rows=T, keys=S, batch=None, heads=None, **options):
    q = torch.randn(2, 4, rows, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, keys, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = None if mask_mod is None else block_mask(mask_mod, batch, heads, rows, keys)
    out, lse = ht.flex_attention(
        q, k, v, score_mod, mask, enable_gqa=kv_heads != 4, return_lse=True, **options
    )
    expected, sums = reference(q, k, v, score_mod, mask_mod, **options)
    assert torch.allclose(out, expected) and torch.allclose(lse, sums)
    weight = torch.randn_like(out)
    wanted = (q, k, v, *captured)
    ours = torch.autograd.grad((out * weight).sum() + lse.nan_to_num(neginf=0).sum(), wanted)
    theirs = torch.autograd.grad((expected * weight).sum() + sums.nan_to_num(neginf=0).sum(), wanted)
    for a, b in zip(ours, theirs):
        assert torch.allclose(a, b.nan_to_num(0), atol=1e-9)
    return mask


def options_of(mask):
    (options,) = mask._heed_options.values()
    return options


def test_masks_reach_the_kernels_as_what_they_are(monkeypatch):
    monkeypatch.setattr(_torch_flex, "_ROWS_AT_ONCE", 16)
    documents = torch.tensor([0] * 10 + [1] * 20 + [2] * 7)
    assert options_of(check(mask_mod=CAUSAL)) == {"window": (-1, 0), "align": "top_left"}
    window = check(mask_mod=lambda b, h, q, k: (q >= k) & (q - k <= 5))
    assert options_of(window) == {"window": (5, 0), "align": "top_left"}
    both = check(mask_mod=lambda b, h, q, k: (q - k).abs() <= 3)
    assert options_of(both) == {"window": (3, 3), "align": "top_left"}
    assert options_of(check(mask_mod=lambda b, h, q, k: q + k >= 0)) == {}
    late = check(mask_mod=lambda b, h, q, k: q + 12 >= k, rows=25)
    assert options_of(late) == {"window": (-1, 0), "align": "bottom_right"}
    shifted = check(mask_mod=lambda b, h, q, k: q + 5 >= k, rows=25)
    assert options_of(shifted) == {"window": (-1, 5), "align": "top_left"}
    for mod in (
        lambda b, h, q, k: documents[q] == documents[k],
        lambda b, h, q, k: (q >= k) & (documents[q] == documents[k]),
        lambda b, h, q, k: (q >= k) | (k < 9),  # a prefix
        lambda b, h, q, k: (q + k) % 3 == 0,
        lambda b, h, q, k: q < 0,  # nobody sees anything
        lambda b, h, q, k: (q >= k) & (q > 3),  # some rows see nothing
    ):
        check(mask_mod=mod)


def test_documents_of_one_sequence_are_packed():
    documents = torch.tensor([0] * 10 + [1] * 20 + [2] * 7)
    q = torch.randn(1, 4, T, 8)
    for causal in (False, True):
        mod = lambda b, h, q, k: (documents[q] == documents[k]) & ((q >= k) | (not causal))  # noqa: B023, E731
        mask = block_mask(mod)
        assert torch.allclose(ht.flex_attention(q, q, q, None, mask), reference(q, q, q, None, mod)[0], atol=1e-6)
        assert options_of(mask)["cu_seqlens"].tolist() == [0, 10, 30, 37] and options_of(mask)["causal"] == causal


def test_masks_of_batches_and_heads():
    lengths = torch.tensor([20, 31])
    check(mask_mod=lambda b, h, q, k: k < lengths[b], batch=2)
    check(mask_mod=lambda b, h, q, k: q - k >= h, heads=4)
    check(mask_mod=lambda b, h, q, k: (k < lengths[b]) & (q >= k) & (q - k < 3 + h), batch=2, heads=4, kv_heads=2)


def test_combined_masks():
    documents = torch.tensor([0] * 10 + [1] * 20 + [2] * 7)
    window = lambda b, h, q, k: q - k < 6  # noqa: E731
    document = lambda b, h, q, k: documents[q] == documents[k]  # noqa: E731
    prefix = lambda b, h, q, k: k < 9  # noqa: E731
    assert options_of(check(mask_mod=flex.and_masks(CAUSAL, window))) == {"window": (5, 0), "align": "top_left"}
    check(mask_mod=flex.or_masks(CAUSAL, prefix))
    check(mask_mod=flex.and_masks(document, flex.or_masks(CAUSAL, prefix)), kv_heads=2)
    check(mask_mod=flex.and_masks(CAUSAL, window, document), kv_heads=1)
    q = torch.randn(1, 4, T, 8)
    for mod in (flex.and_masks(document, CAUSAL), flex.and_masks(CAUSAL, window, document)):
        mask = block_mask(mod)
        assert torch.allclose(ht.flex_attention(q, q, q, None, mask), reference(q, q, q, None, mod)[0], atol=1e-6)


def test_lists_of_blocks_count():
    """A BlockMask made from its lists, which hide more than mask_mod does."""
    blocks = torch.tensor([[[[1, 0, 0], [1, 0, 0], [1, 1, 1]]]], dtype=torch.bool)
    counts, indices = flex._dense_to_ordered(blocks.int())
    mask = flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, mask_mod=CAUSAL, seq_lengths=(T, S))
    q = torch.randn(1, 1, T, 8)
    dense = blocks.repeat_interleave(16, 2).repeat_interleave(16, 3)[..., :T, :S] & (torch.ones(T, S).tril() > 0)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, dense)
    assert torch.allclose(ht.flex_attention(q, q, q, None, mask), expected, atol=1e-6)


def test_scores():
    slopes = torch.rand(4, dtype=torch.float64) + 0.1
    table = torch.randn(4, 2 * T, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 4, T, S, dtype=torch.float64, requires_grad=True)
    factors = (torch.rand(4, dtype=torch.float64) + 0.5).requires_grad_()
    inf = float("inf")
    check(lambda s, b, h, q, k: s)
    check(lambda s, b, h, q, k: s * 0.5 - 1)
    check(lambda s, b, h, q, k: -s, scale=0.3)
    check(lambda s, b, h, q, k: s + slopes[h] * (k - q), mask_mod=CAUSAL)
    check(lambda s, b, h, q, k: s + slopes[h] * (k - q))
    check(lambda s, b, h, q, k: (q - k).abs() * -slopes[h] + s, kv_heads=2)
    check(lambda s, b, h, q, k: s + table[h, q - k + T], captured=[table], mask_mod=CAUSAL)
    check(lambda s, b, h, q, k: s + table[h][q - k + T], captured=[table])
    check(lambda s, b, h, q, k: torch.add(s, bias[b, h, q, k]), captured=[bias], kv_heads=1)
    check(lambda s, b, h, q, k: 5 * torch.tanh(s / 5))
    check(lambda s, b, h, q, k: (s / 5).tanh() * -5 + 0.1 * k, mask_mod=CAUSAL)
    check(lambda s, b, h, q, k: torch.where(q >= k, s, -inf))
    check(lambda s, b, h, q, k: torch.where(q < k, -inf, s + slopes[h] * (k - q)))
    check(lambda s, b, h, q, k: s.masked_fill(q < k, -inf) + 0.5 * (k % 3))
    check(lambda s, b, h, q, k: torch.where(k % 2 == 0, s + 1, s - k * 0.1), mask_mod=lambda b, h, q, k: q - k < 9)
    check(lambda s, b, h, q, k: s * factors[h], captured=[factors])
    check(lambda s, b, h, q, k: s * (1 + k), kv_heads=2)
    check(lambda s, b, h, q, k: s.double() + torch.zeros_like(s))


def test_alibi_is_not_held_as_numbers(monkeypatch):
    seen = {}
    monkeypatch.setattr(_torch_flex, "attend", lambda *x, **options: seen.update(options) or heed.attend(*x, **options))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    q = torch.randn(1, 4, T, 8)
    ht.flex_attention(q, q, q, lambda s, b, h, q, k: s + slopes[h] * (k - q), block_mask(CAUSAL))
    assert torch.equal(seen["alibi_slopes"].float(), slopes) and "bias" not in seen and "allow" not in seen
    ht.flex_attention(q, q, q, lambda s, b, h, q, k: s + slopes[h] * (k - q))
    assert "bias" in seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_pytorchs_own(dtype):
    q, k, v = (torch.randn(2, heads, 33, 16, dtype=dtype) for heads in (4, 2, 2))
    mask = block_mask(lambda b, h, q, k: (q >= k) & (q - k < 20), rows=33, keys=33)
    mod = lambda s, b, h, q, k: 20 * torch.tanh(s / 20) + 0.125 * h * (k - q)  # noqa: E731
    given = (q, k, v, mod, mask)
    expected, aux = flex.flex_attention(*given, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
    out, ours = ht.flex_attention(*given, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
    bound = 2e-6 if dtype == torch.float32 else 2e-2
    assert out.dtype == dtype and torch.allclose(out, expected, atol=bound)
    assert torch.allclose(ours.lse, aux.lse, atol=max(bound, 1e-5)) and ours.max_scores is None


def test_the_rest_is_refused_with_the_reason():
    q = torch.randn(1, 2, 5, 4)
    for mod, reason in (
        (lambda s, b, h, q, k: torch.exp(s), r"exp\(\)"),
        (lambda s, b, h, q, k: s * s, "product of two scores"),
        (lambda s, b, h, q, k: s + s, "sum of two scores"),
        (lambda s, b, h, q, k: 1 / s, "quotient"),
        (lambda s, b, h, q, k: torch.where(s > 0, s, 0), "comparison"),
        (lambda s, b, h, q, k: torch.where(q >= k, s, -1e9), "-inf"),
        (lambda s, b, h, q, k: torch.tanh(s + k), "tanh"),
        (lambda s, b, h, q, k: torch.tanh(s) * k, "tanh times"),
        (lambda s, b, h, q, k: s * (1 + q + k), "times one of both"),
        (lambda s, b, h, q, k: q * 1.0, "no part"),
        (lambda s, b, h, q, k: -torch.where(q >= k, s, -torch.inf), "hidden scores times"),
        (lambda s, b, h, q, k: s.clamp(max=3), r"clamp\(\)"),
    ):
        with pytest.raises(heed.Error, match=reason):
            ht.flex_attention(q, q, q, mod)
    with pytest.raises(heed.Error, match="one of 5 queries and 5 keys"):
        ht.flex_attention(q, q, q, None, block_mask(CAUSAL, rows=6, keys=5))
    with pytest.raises(heed.Error, match="BlockMask"):
        ht.flex_attention(q, q, q, None, CAUSAL)
    with pytest.raises(heed.Error, match="heads as in query"):
        ht.flex_attention(q, q[:, :1], q[:, :1])
    with pytest.raises(heed.Error, match="lse alone"):
        ht.flex_attention(q, q, q, return_aux=flex.AuxRequest(max_scores=True))
