"""Softmax attention for PyTorch: differentiable, and in the place of PyTorch's own."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch.nested._internal.nested_tensor import NestedTensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from . import _core
from ._core import Error
from ._torch_op import attend_backward_in_graph, attend_in_graph, is_special, is_watched, needs_operator

_exact_types = frozenset((torch.Tensor, torch.nn.Parameter))
_is_mapped = torch._C._functorch.is_legacy_batchedtensor


def draw_seed() -> int:
    """From PyTorch's generator, so that torch.manual_seed makes dropout repeat itself."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def drawn_in_graph() -> torch.Tensor:
    """The same as a tensor, which a graph can draw anew each time."""
    return torch.randint(0, 2**62, (), dtype=torch.int64)


def records_gradient(*tensors: Optional[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


def as_tensor(x: Any) -> Optional[torch.Tensor]:
    """What may have a gradient has to be a tensor: lists (of slopes, say) are copied, other arrays shared."""
    if x is None or isinstance(x, torch.Tensor):
        return x
    return torch.tensor(x, dtype=torch.float64) if isinstance(x, (list, tuple)) else torch.as_tensor(x)


class Once(torch.autograd.Function):
    """The results of a backward pass while a graph of it is made (create_graph=True): constants would pass for
    derivatives that are 0, so whoever goes back through them is told."""

    @staticmethod
    def forward(ctx, name, count, *tensors):  # type: ignore[no-untyped-def]
        ctx.name = name
        return tuple(None if x is None else x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx, *_):  # type: ignore[no-untyped-def]
        raise RuntimeError(
            f"[{ctx.name}] expected to be differentiated once, got a second time: heed has no second derivatives of it"
        )


def differentiated_once(name: str, gradients: tuple, inputs: tuple) -> tuple:  # type: ignore[type-arg]
    """`gradients`, tied to the inputs they were computed from where a graph is being made."""
    if not torch.is_grad_enabled():
        return gradients
    tied = [x for x in inputs if isinstance(x, torch.Tensor)]
    return Once.apply(name, len(gradients), *gradients, *tied)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, alibi_slopes, sinks, options, out=()):  # type: ignore[no-untyped-def]
        out, lse = _core.attend(
            q,
            k,
            v,
            bias=bias,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            lse=True,
            **options,
            out=out[0] if out else None,  # in a tuple, autograd does not take it for an input
        )
        # Masks and lengths too, so that PyTorch sees who writes into them before the way back.
        ctx.said = tuple(name for name, x in options.items() if isinstance(x, torch.Tensor))
        ctx.save_for_backward(q, k, v, out, lse, bias, alibi_slopes, sinks, *(options[name] for name in ctx.said))
        ctx.options = {name: x for name, x in options.items() if name not in ctx.said} if ctx.said else options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):  # type: ignore[no-untyped-def]
        if dout is None and dlse is None:
            return (None,) * 8
        with torch.no_grad():
            saved = ctx.saved_tensors  # once: with activation checkpoints they are gone afterwards
            # Gradients of many dout at once (is_grads_batched) are a transform over this call.
            mapped = any(x is not None and _is_mapped(x) for x in (dout, dlse))
            gradients = (Attend.mapped_gradients if mapped else Attend.gradients)(ctx, saved, dout, dlse)
        return *differentiated_once("attend", gradients, (*saved, dout, dlse)), None, None

    @staticmethod
    def mapped_gradients(ctx, saved, dout, dlse):  # type: ignore[no-untyped-def]
        q, k, v, out, lse, bias, alibi_slopes, sinks, *said = saved
        options = {**ctx.options, **dict(zip(ctx.said, said))}
        given = {**options, "bias": bias, "alibi_slopes": alibi_slopes, "sinks": sinks}
        needs = [bool(need) for need in ctx.needs_input_grad[3:6]]
        *main, dbias, dslopes, dsinks = attend_backward_in_graph(dout, dlse, q, k, v, out, lse, needs, given)
        small = (x if need else None for x, need in zip((dbias, dslopes, dsinks), needs))
        return *main, *small

    @staticmethod
    def gradients(ctx, saved, dout, dlse):  # type: ignore[no-untyped-def]
        q, k, v, out, lse, bias, alibi_slopes, sinks, *said = saved
        if dout is None:
            dout = out.new_zeros(()).expand(out.shape)
        needs = ctx.needs_input_grad
        g = _core.attend_backward(
            q,
            k,
            v,
            out,
            lse,
            dout,
            dlse=dlse,
            bias=bias,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            dbias=needs[3],
            dalibi_slopes=needs[4],
            dsinks=needs[5],
            **ctx.options,
            **dict(zip(ctx.said, said)),
        )
        dbias = g.dbias.to(bias.dtype) if needs[3] else None
        dslopes = g.dalibi_slopes.to(alibi_slopes.dtype) if needs[4] else None
        dsinks = g.dsinks.to(sinks.dtype) if needs[5] else None
        return g.dq, g.dk, g.dv, dbias, dslopes, dsinks


def _with_columns(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Heads of size 0 get a column of zeros, which changes no score and is cut from the result."""

    def widened(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[-1] else torch.nn.functional.pad(x, (0, 1))

    if not q.shape[-1]:
        options["scale"] = 1.0
    return widened(q), widened(k), widened(v)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bias: Optional[torch.Tensor] = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    lse: bool = False,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    **options: Any,
) -> Any:
    """heed.attend with gradients: of q, k, v, bias, alibi_slopes and sinks, and through lse.

    q [B,H,T,D], k [B,G,S,D], v [B,G,S,E]; the options are heed.attend's. Returns out [B,H,T,E], with lse=True also lse
    [B,H,T]. Without a seed, dropout draws one from PyTorch's generator.

    >>> q = torch.ones(1, 1, 2, 4, requires_grad=True)
    >>> heed.torch.attend(q, q, q, causal=True).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 1, 2, 4])
    """
    if not (q.shape[-1] and v.shape[-1]):
        given = {"bias": bias, "alibi_slopes": alibi_slopes, "sinks": sinks, "dropout": dropout, "seed": seed, **options}
        out, sums = attend(*_with_columns(q, k, v, given), lse=True, **given)
        out = out[..., : v.shape[-1]]
        return (out, sums) if lse else out
    bias, alibi_slopes, sinks = as_tensor(bias), as_tensor(alibi_slopes), as_tensor(sinks)
    if needs_operator(q, k, v, bias, alibi_slopes, sinks, options.get("allow")):
        if dropout:
            options["dropout"] = dropout
            options["seed"] = drawn_in_graph() if seed is None else seed
        given = {"bias": bias, "alibi_slopes": alibi_slopes, "sinks": sinks}
        results = attend_in_graph(q, k, v, {**options, **given})
        return results if lse else results[0]
    if dropout:
        options["dropout"] = dropout
        options["seed"] = draw_seed() if seed is None else seed
    if records_gradient(q, k, v, bias, alibi_slopes, sinks):
        out, sums = Attend.apply(q, k, v, bias, alibi_slopes, sinks, options)
        return (out, sums) if lse else out
    return _core.attend(q, k, v, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, lse=lse, **options)


def _broadcast(*shapes: torch.Size) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        texts = ", ".join(str(list(shape)) for shape in shapes)
        raise Error(
            f"[scaled_dot_product_attention] query, key, value: expected leading axes that broadcast, got {texts}"
        ) from error


def _to_four_axes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional[torch.Tensor], grouped: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional[torch.Tensor], torch.Size]:
    """[B,H,T,D] views of q, k and v with any leading axes, the mask to match, and the leading axes of the result."""
    if grouped:
        if q.dim() < 3 or k.dim() < 3 or v.dim() < 3:
            raise Error("[scaled_dot_product_attention] enable_gqa: expected an axis of heads, got fewer than 3 axes")
        if k.shape[-3] != v.shape[-3]:  # each of them divides the query heads by its own number
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
        batch = _broadcast(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        leading = torch.Size((*batch, q.shape[-3]))
        kv_leading = torch.Size((*batch, k.shape[-3]))
    else:
        leading = kv_leading = _broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])

    def flat(x: torch.Tensor, axes: torch.Size) -> torch.Tensor:
        heads = axes[-1] if axes else 1
        return x.expand(*axes, *x.shape[-2:]).reshape(math.prod(axes[:-1]), heads, *x.shape[-2:])

    if mask is not None:
        if mask.dim() > len(leading) + 2:
            raise Error(
                f"[scaled_dot_product_attention] attn_mask: expected at most {len(leading) + 2} axes, got {mask.dim()}"
            )
        mask = mask[(None,) * (max(4, len(leading) + 2) - mask.dim())]
        if mask.dim() > 4:
            batch = mask.shape[:-3]
            if any(extent != 1 for extent in batch):
                mask = mask.expand(*leading[:-1], *mask.shape[-3:])
            mask = mask.reshape(-1, *mask.shape[-3:])
    return flat(q, leading), flat(k, kv_leading), flat(v, kv_leading), mask, leading


def _rows(name: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences [B,H,j,D] of a jagged tensor end to end, [1,H,sum of j,D], and where each begins and ends."""
    if not isinstance(x, NestedTensor) or x.dim() != 4 or x._ragged_idx != 2 or x.lengths() is not None:
        raise Error(
            f"[scaled_dot_product_attention] {name}: expected a jagged tensor [B,H,j,D] without holes beside the others, "
            f"got {type(x).__name__} {tuple(x.shape)}"
        )
    straight = x.transpose(1, 2)  # [B,j,H,D], whose values are [sum of j,H,D]
    return straight.values().transpose(0, 1)[None], straight.offsets()


def _packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    grouped: bool,
) -> torch.Tensor:
    """Jagged tensors: sequences of different lengths, packed, and so nothing is padded."""
    if mask is not None:
        raise Error("[scaled_dot_product_attention] attn_mask: expected None beside jagged tensors, got one")
    if key.shape[1] != query.shape[1] and not grouped:
        raise Error(
            f"[scaled_dot_product_attention] key: expected {query.shape[1]} heads as in query, or enable_gqa, "
            f"got {key.shape[1]}"
        )
    query, key, value = in_autocast(query, key, value)
    (q, cu_q), (k, cu_k), (v, cu_v) = (_rows(n, x) for n, x in (("query", query), ("key", key), ("value", value)))
    if cu_v is not cu_k and not torch.equal(cu_v, cu_k):
        raise Error("[scaled_dot_product_attention] value: expected sequences as long as key's, got others")
    options: dict[str, Any] = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": is_causal, "align": "top_left"}
    out = attend(q, k, v, dropout=dropout_p, scale=scale, **options)
    rows = out[0].transpose(0, 1)
    straight = query.transpose(1, 2)
    return torch.nested.nested_tensor_from_jagged(
        rows, straight.offsets(), min_seqlen=straight._maybe_min_seqlen, max_seqlen=straight._maybe_max_seqlen
    ).transpose(1, 2)


def in_autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the attention of PyTorch computes with under autocast: the narrow type, float64 apart."""
    device = "cuda" if tensors[0].is_cuda else "cpu"
    if not torch.is_autocast_enabled(device):
        return tensors
    narrow = torch.get_autocast_dtype(device)
    return tuple(x if x.dtype == torch.float64 else x.to(narrow) for x in tensors)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, argument for argument.

    query [...,H,T,D], key [...,G,S,D], value [...,G,S,E]; G is H, or divides it with enable_gqa. attn_mask broadcasts
    to [...,H,T,S]: bool (True attends) or float (added). is_causal counts from the top left. A row that sees nothing is
    0, as in PyTorch. Dropout draws its seed from PyTorch's generator; its bits are not PyTorch's.

    >>> x = torch.ones(2, 3, 5, 4)
    >>> heed.torch.scaled_dot_product_attention(x, x, x, is_causal=True).shape
    torch.Size([2, 3, 5, 4])
    """
    special = False
    if not (type(query) in _exact_types and type(key) in _exact_types and type(value) in _exact_types):
        if type(query) is NestedTensor:
            return _packed(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        tensors = (query, key, value)
        if not all(isinstance(x, torch.Tensor) for x in tensors):
            if torch.overrides.has_torch_function(tensors):  # those of a tracer (torch.fx)
                options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
                here: Any = scaled_dot_product_attention
                return torch.overrides.handle_torch_function(here, tensors, *tensors, **options, enable_gqa=enable_gqa)
            names = ", ".join(type(x).__name__ for x in tensors)
            raise TypeError(f"[scaled_dot_product_attention] query, key, value: expected tensors, got {names}")
        special = any(map(is_special, tensors))
    watched = is_watched()
    if not watched and not (query.numel() and value.numel()) and 0 in query.shape[:-2]:
        return query.matmul(key.mT).matmul(value)  # no heads, or no batch: nothing
    if not watched and not (query.shape[-1] and value.shape[-1]):
        given: dict[str, Any] = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        wide = _with_columns(query, key, value, given)
        return scaled_dot_product_attention(*wide, **given, enable_gqa=enable_gqa)[..., : value.shape[-1]]
    if attn_mask is None and not dropout_p and not watched and not special and not query.is_meta:
        out = _core._plain_attention(query, key, value, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    align = "top_left"
    if isinstance(attn_mask, CausalBias):
        if is_causal:
            raise Error(
                "[scaled_dot_product_attention] attn_mask: expected no CausalBias where is_causal is set, got one: "
                "CausalBias should not be used with causal=True"
            )
        rows, columns = query.shape[-2], key.shape[-2]
        if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != (rows, columns):
            raise Error(
                f"[scaled_dot_product_attention] attn_mask: expected a CausalBias of {rows} queries and {columns} keys, "
                f"got one of {attn_mask.seq_len_q} and {attn_mask.seq_len_kv}"
            )
        align = "top_left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"
        attn_mask, is_causal = None, True
    if attn_mask is not None and is_causal:
        raise Error(
            "[scaled_dot_product_attention] attn_mask: expected None where is_causal is set, got a tensor: "
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if not 0.0 <= dropout_p <= 1.0:
        raise Error(f"[scaled_dot_product_attention] dropout_p: expected a number from 0 to 1, got {dropout_p}")
    query, key, value = in_autocast(query, key, value)
    q, k, v, mask, leading = query, key, value, attn_mask, None
    a, b, c = query.shape, key.shape, value.shape
    plain = len(a) == len(b) == len(c) == 4 and a[0] == b[0] == c[0] and b[1] == c[1] and (enable_gqa or a[1] == b[1])
    if not plain or (mask is not None and mask.dim() != 4):
        q, k, v, mask, leading = _to_four_axes(query, key, value, attn_mask, enable_gqa)

    options: dict[str, Any] = {}
    bias = None
    if is_causal:
        options["causal"] = True
        options["align"] = align
    if scale is not None:
        options["scale"] = scale
    if mask is not None:
        if mask.dtype == torch.bool:
            options["allow"] = mask
        else:
            bias = mask
    if dropout_p == 1.0:  # every weight is dropped; heed's own dropout ends below 1
        options["dropout"] = 0.5
        options["dropout_keep"] = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    elif dropout_p:
        options["dropout"] = dropout_p
        options["seed"] = drawn_in_graph() if watched else draw_seed()

    if watched or needs_operator(q, k, v, mask):
        out, _ = attend_in_graph(q, k, v, {**options, "bias": bias})
        return out if leading is None else out.reshape(*leading, *out.shape[-2:])

    out = None
    if q.stride(1) < q.stride(2):  # [B,T,H,D] in memory: the result is wanted in that order too
        batch, heads, rows, _ = q.shape
        out = q.new_empty((batch, rows, heads, v.shape[3])).transpose(1, 2)
    if torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (bias is not None and bias.requires_grad)
    ):
        out, _ = Attend.apply(q, k, v, bias, None, None, options, (out,))
    else:
        out = _core.attend(q, k, v, bias=bias, out=out, **options)
    return out if leading is None else out.reshape(*leading, *out.shape[-2:])
