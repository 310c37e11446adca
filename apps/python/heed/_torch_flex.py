"""torch.nn.attention.flex_attention on heed's kernels: what score_mod and mask_mod commonly say becomes options that the
kernels know. The functions are called once with all indices; no code is generated."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch

from ._core import Error
from ._torch_attention import attend
from ._torch_flex_score import ScoreForm, captured_score
from ._torch_op import require_plain

_NAME = "flex_attention"
# Rows of queries that are looked at together, so that a mask that is a window in the end is never held as a whole.
_ROWS_AT_ONCE = 512


def mapped(function: Callable[..., Any], sizes: tuple[int, int, int, int], rows: range) -> Any:
    """`function` of scalars (b, h, q, k) at all indices: [B,H,rows,S]. Axes that a result does not depend on have stride
    0, and nothing was computed for them."""
    batch, heads, _, keys = sizes
    for axis in (3, 2, 1, 0):
        function = torch.vmap(function, in_dims=tuple(0 if n == axis else None for n in range(4)))
    indices = (range(batch), range(heads), rows, range(keys))
    return function(*(torch.arange(x.start, x.stop, dtype=torch.int32) for x in indices))


def without_repetition(x: torch.Tensor) -> torch.Tensor:
    """One entry of each axis along which nothing changes."""
    for axis in range(x.dim()):
        if x.shape[axis] > 1 and x.stride(axis) == 0:
            x = x.narrow(axis, 0, 1)
    return x


def _shared(seen: torch.Tensor) -> torch.Tensor:
    """One batch entry, and one head, of a mask that says the same of all: PyTorch's and_masks and or_masks compute for
    every one of them."""
    for axis in (0, 1):
        one = seen.narrow(axis, 0, min(1, seen.shape[axis]))
        if seen.shape[axis] > 1 and bool((seen == one).all()):
            seen = one
    return seen


def _blocks_of_rows(rows: int) -> list[range]:
    return [range(first, min(first + _ROWS_AT_ONCE, rows)) for first in range(0, rows, _ROWS_AT_ONCE)]


def _dense(counts: Optional[torch.Tensor], indices: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """[B,H,block rows,block columns]: the blocks that are listed."""
    if counts is None or indices is None:
        return None
    columns = indices.shape[-1]
    listed = torch.arange(columns) < counts[..., None]
    dense = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool)
    return dense.scatter_(-1, torch.where(listed, indices.long(), columns), True)[..., :columns]


class _Visible:
    """Who sees whom, by a BlockMask: everything in its full blocks, what mask_mod says in the others that it lists."""

    def __init__(self, block_mask: Any, sizes: tuple[int, int, int, int]) -> None:
        self.sizes = sizes
        self.mask_mod = block_mask.mask_mod
        self.block = block_mask.BLOCK_SIZE
        self.has_blocks = max(self.block) < 1 << 30  # PyTorch's mask of nothing has one block that large
        self.full = _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        self.partial = _dense(block_mask.kv_num_blocks, block_mask.kv_indices)

    def spread(self, blocks: torch.Tensor, rows: range) -> torch.Tensor:
        by_row = torch.arange(rows.start, rows.stop) // self.block[0]
        by_key = torch.arange(self.sizes[3]) // self.block[1]
        return blocks[:, :, by_row][..., by_key]

    def __call__(self, rows: range) -> torch.Tensor:
        said = mapped(self.mask_mod, self.sizes, rows)
        if not isinstance(said, torch.Tensor) or said.dtype != torch.bool:
            raise Error(f"[{_NAME}] block_mask: expected a mask_mod that returns a boolean, got {said!r:.80}")
        said = _shared(without_repetition(said))
        if self.has_blocks and self.partial is not None:
            said = said & self.spread(self.partial, rows)
            if self.full is not None:
                said = said | self.spread(self.full, rows)
        return said


def _intervals(visible: torch.Tensor) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
    """The first key that each row sees and the one behind its last, where it sees all between them."""
    seen = visible[0, 0].to(torch.uint8)
    first, count = seen.argmax(-1), seen.sum(-1)
    last = seen.shape[-1] - seen.flip(-1).argmax(-1)
    whole = torch.where(count == 0, True, last - first == count)
    if not bool(whole.all()):
        return None
    return torch.where(count == 0, 0, first), torch.where(count == 0, 0, last)


def _as_window(begin: torch.Tensor, end: torch.Tensor, keys: int) -> Optional[dict[str, Any]]:
    """Intervals that move with the row, as a window."""
    rows = len(begin)
    found: Optional[dict[str, Any]] = None
    for align, offset in (("top_left", 0), ("bottom_right", keys - rows)):
        position = torch.arange(rows) + offset
        cut_left, cut_right = (begin > 0) & (end > begin), (end < keys) & (end > begin)
        left = int((position - begin)[cut_left][0]) if bool(cut_left.any()) else -1
        right = int((end - 1 - position)[cut_right][0]) if bool(cut_right.any()) else -1
        if (bool(cut_left.any()) and left < 0) or (bool(cut_right.any()) and right < 0):
            continue
        low = (position - left).clamp(0, keys) if left >= 0 else torch.zeros_like(position)
        high = (position + right + 1).clamp(0, keys) if right >= 0 else torch.full_like(position, keys)
        empty = low >= high
        if bool(((low == begin) & (high == end) | (empty & (end <= begin))).all()):
            if left < 0 and right < 0:
                return {}
            if found is None or (right == 0 and found["window"][1] != 0):  # causal, rather than far to the right
                found = {"window": (left, right), "align": align}
    return found


def _as_sequences(begin: torch.Tensor, end: torch.Tensor, keys: int) -> Optional[dict[str, Any]]:
    """Intervals of documents that lie end to end, each of which sees itself, all of it or what came before."""
    rows = len(begin)
    if rows != keys or rows == 0 or bool((begin[1:] < begin[:-1]).any()):
        return None
    starts = torch.unique_consecutive(begin)
    bounds = torch.cat([starts, starts.new_tensor([rows])])
    document = torch.searchsorted(starts, torch.arange(rows), right=True) - 1
    if int(starts[0]) != 0 or not bool((begin == starts[document]).all()):
        return None
    for causal, expected in ((True, torch.arange(rows) + 1), (False, bounds[document + 1])):
        if bool((end == expected).all()):
            return {"cu_seqlens": bounds, "causal": causal}
    return None


def mask_options(
    visible: Callable[[range], torch.Tensor], sizes: tuple[int, int, int, int], packed: bool
) -> dict[str, Any]:
    """heed.attend's options for who sees whom: a window, packed sequences where they may be, or a mask."""
    rows, keys = sizes[2:]

    def some(part: range) -> torch.Tensor:
        seen = visible(part)
        return seen.expand(*seen.shape[:2], len(part), keys)

    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    for part in _blocks_of_rows(rows):
        seen = some(part)
        found = _intervals(seen) if seen.shape[:2] == (1, 1) else None
        if found is None:
            break
        parts.append(found)
    else:
        begin, end = (torch.cat(x) for x in zip(*parts))
        window = _as_window(begin, end, keys)
        if window is not None:
            return window
        sequences = _as_sequences(begin, end, keys) if packed and sizes[0] == 1 else None
        if sequences is not None:
            return sequences
    return {"allow": torch.cat([some(part) for part in _blocks_of_rows(rows)], 2)}


def _remembered(block_mask: Any, sizes: tuple[int, int, int, int], packed: bool) -> dict[str, Any]:
    """Found once for a BlockMask, as its lists of blocks were: layers share one."""
    known = block_mask.__dict__.setdefault("_heed_options", {})
    key = (sizes, packed)
    if key not in known:
        known[key] = mask_options(_Visible(block_mask, sizes), sizes, packed)
    return dict(known[key])


def _mask(block_mask: Any, form: ScoreForm, sizes: tuple[int, int, int, int]) -> dict[str, Any]:
    packed = not form.adds
    if not form.hides:
        return {} if block_mask is None else _remembered(block_mask, sizes, packed)
    if block_mask is None:
        return mask_options(lambda part: ~without_repetition(form.hidden(part)), sizes, packed)
    both = _Visible(block_mask, sizes)
    return mask_options(lambda part: both(part) & ~without_repetition(form.hidden(part)), sizes, packed)


def _alibi(form: ScoreForm, sizes: tuple[int, int, int, int], causal: bool) -> Optional[torch.Tensor]:
    """Slopes, where what is added is slope * -|q - k| of every head (for keys that are seen), the same for all batch
    entries."""
    _, heads, rows, keys = sizes
    if rows < 2 or keys < 2 or form.added_needs_gradient:
        return None
    slopes: Optional[torch.Tensor] = None
    for part in _blocks_of_rows(rows):
        added = without_repetition(form.added(part)).double()
        if added.shape[0] != 1 or added.shape[2:] != (len(part), keys):
            return None
        distance = (torch.arange(part.start, part.stop)[:, None] - torch.arange(keys)).double()
        if slopes is None:
            slopes = -added[0, :, 1, 0]
        wanted = slopes[:, None, None] * distance.abs()
        wrong = ~((added[0] + wanted).abs() <= 1e-6 * wanted.abs())
        if bool((wrong & (distance >= 0) if causal else wrong).any()):
            return None
    return None if slopes is None else slopes.expand(heads).contiguous()


def _added(form: ScoreForm, sizes: tuple[int, int, int, int], mask: dict[str, Any], wide: torch.dtype) -> dict[str, Any]:
    if not form.adds:
        return {}
    causal = mask.get("window", (-1, -1))[1] == 0
    if mask.get("align", "top_left") == "top_left":
        slopes = _alibi(form, sizes, causal)
        if slopes is not None:
            return {"alibi_slopes": slopes, "align": "top_left"}
    added = without_repetition(form.added(range(sizes[2])))
    return {"bias": added.to(wide)}


def _times(query: torch.Tensor, key: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores times `factor` [B,H,T,S], by its factor of queries or of keys."""
    factor = without_repetition(factor)
    if factor.shape[3] == 1:
        return query * factor[..., 0][..., None].to(query.dtype), key
    if factor.shape[2] == 1 and (factor.shape[1] == 1 or key.shape[1] == query.shape[1]):
        return query, key * factor[:, :, 0, :, None].to(key.dtype)
    raise Error(f"[{_NAME}] score_mod: expected scores times a number of the query or of the key, got times one of both")


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: Any, enable_gqa: bool) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or x.device.type != "cpu":
            raise Error(f"[{_NAME}] {name}: expected a tensor [B,H,T,D] of the CPU, got {x!r:.80}")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise Error(f"[{_NAME}] key: expected {query.shape[1]} heads as in query, or enable_gqa, got {key.shape[1]}")
    if block_mask is None:
        return
    if not hasattr(block_mask, "mask_mod") or not hasattr(block_mask, "kv_num_blocks"):
        raise Error(f"[{_NAME}] block_mask: expected a BlockMask (create_block_mask), got {block_mask!r:.80}")
    size = (query.shape[2], key.shape[2])
    made_for = tuple(block_mask.seq_lengths)
    if max(block_mask.BLOCK_SIZE) < 1 << 30 and made_for != size:
        raise Error(f"[{_NAME}] block_mask: expected one of {size[0]} queries and {size[1]} keys, got one of {made_for}")


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Optional[Callable[..., Any]] = None,
    block_mask: Any = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, argument for argument, on the CPU, with gradients also of what
    score_mod captures.

    score_mod may multiply scores (by a number of the query or of the key), soft-cap them (c * tanh(score / c)), add
    anything that depends on the indices (biases, tables, ALiBi) and hide (where(..., score, -inf)), in this order; the
    rest is refused. Masks that are causal, windows or documents reach the kernels as such. A BlockMask is asked once: make
    another where what its mask_mod captures has changed. kernel_options are PyTorch's kernels' and do nothing here.

    >>> x = torch.ones(1, 2, 6, 4, requires_grad=True)
    >>> out = heed.torch.flex_attention(x, x, x, lambda score, b, h, q, k: score + 0.5 * (k - q))
    >>> out.sum().backward()
    """
    require_plain(_NAME, query, key, value)
    _check(query, key, value, block_mask, enable_gqa)
    if return_aux is not None and (return_lse or getattr(return_aux, "max_scores", False)):
        what = "return_lse" if return_lse else "max_scores"
        raise Error(f"[{_NAME}] return_aux: expected a request for lse alone, got {what} too")
    if key.shape[0] == 1 and query.shape[0] != 1:
        key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    options: dict[str, Any] = {}
    scale = 1 / math.sqrt(max(query.shape[3], 1)) if scale is None else float(scale)
    if 0 not in sizes:
        form = captured_score(score_mod, lambda function, part: mapped(function, sizes, part), wide)
        options.update(_mask(block_mask, form, sizes))
        options.update(_added(form, sizes, options, wide))
        if form.softcap:
            options["softcap"] = form.softcap
        scale *= form.factor
        if form.factors is not None:
            query, key = _times(query, key, form.factors(range(sizes[2])))
    out, lse = attend(query, key, value, scale=scale, lse=True, **options)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)
    return (out, lse) if return_lse else out
