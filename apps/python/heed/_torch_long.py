"""RoPE, linear attention and Infini-attention for PyTorch, differentiable."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from . import _core
from ._core import InfiniMemory, RopeTable
from ._results import LinearState
from ._torch_attention import as_tensor, differentiated_once, records_gradient
from ._torch_op import require_plain


class Rope(torch.autograd.Function):
    """Linear in x, so that its backward pass is one of these, too, and any number of derivatives is right."""

    @staticmethod
    def forward(ctx, x, table, options, back):  # type: ignore[no-untyped-def]
        ctx.table, ctx.options, ctx.back = table, options, back
        return (_core.rope_backward if back else _core.rope)(x, table, **options)

    @staticmethod
    def backward(ctx, dout):  # type: ignore[no-untyped-def]
        return Rope.apply(dout, ctx.table, ctx.options, not ctx.back), None, None, None


def rope(x: torch.Tensor, table: RopeTable, *, positions: Any = None, first: int = 0) -> torch.Tensor:
    """heed.rope with gradients: x [B,H,T,D] with every row rotated by its position.

    >>> x = torch.ones(1, 1, 3, 4, requires_grad=True)
    >>> heed.torch.rope(x, heed.rope_table(heed.Rope(4))).sum().backward()
    """
    require_plain("rope", x)
    options = {"positions": positions, "first": first}
    return Rope.apply(x, table, options, False) if records_gradient(x) else _core.rope(x, table, **options)


class Rotate(torch.autograd.Function):
    """Linear in x as Rope is."""

    @staticmethod
    def forward(ctx, x, by, options, back):  # type: ignore[no-untyped-def]
        ctx.by, ctx.options, ctx.back = by, options, back
        return (_core.rotate_backward if back else _core.rotate)(x, *by, **options)

    @staticmethod
    def backward(ctx, dout):  # type: ignore[no-untyped-def]
        return Rotate.apply(dout, ctx.by, ctx.options, not ctx.back), None, None, None


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, **options: Any) -> Any:
    """heed.rotate with gradients for x [B,H,T,D]; cosine and sine are tables that need none.

    >>> x = torch.ones(1, 1, 3, 4, requires_grad=True)
    >>> heed.torch.rotate(x, torch.ones(3, 2), torch.zeros(3, 2)).sum().backward()
    """
    require_plain("rotate", x, cosine, sine)
    if records_gradient(cosine, sine):
        raise ValueError("[rotate] cosine, sine: expected tables that need no gradient, got one that does")
    by = (cosine, sine)
    return Rotate.apply(x, by, options, False) if records_gradient(x) else _core.rotate(x, *by, **options)


class LinearAttend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, s, z, decay, log_decay, beta, options):  # type: ignore[no-untyped-def]
        initial = None if s is None else LinearState(s, z)
        gates = {"decay": decay, "log_decay": log_decay, "beta": beta}
        out, final = _core.linear_attend(q, k, v, initial=initial, final=True, **gates, **options)
        ctx.save_for_backward(q, k, v, s, z, decay, log_decay, beta)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return (out, final.s) if final.z is None else (out, final.s, final.z)

    @staticmethod
    def backward(ctx, dout, ds, dz=None):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            saved = ctx.saved_tensors  # once: with activation checkpoints they are gone afterwards
            gradients = LinearAttend.gradients(ctx, saved, dout, ds, dz)
        return *differentiated_once("linear_attention", gradients, (*saved, dout, ds, dz)), None

    @staticmethod
    def gradients(ctx, saved, dout, ds, dz):  # type: ignore[no-untyped-def]
        q, k, v, s, z, decay, log_decay, beta = saved
        if dout is None:
            shape = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
            dout = q.new_zeros(()).expand(shape)
        needs = ctx.needs_input_grad
        initial = None if s is None else (s, z)
        g = _core.linear_attend_backward(
            q,
            k,
            v,
            dout,
            initial=initial,
            decay=decay,
            dfinal=(ds, dz),
            dinitial=needs[3] or needs[4],
            ddecay=needs[5],
            log_decay=log_decay,
            dlog_decay=needs[6],
            beta=beta,
            dbeta=needs[7],
            **ctx.options,
        )
        dinitial = (None, None) if g.dinitial is None else (g.dinitial.s, g.dinitial.z)
        ddecay = None if g.ddecay is None else g.ddecay.to(decay.dtype)
        return g.dq, g.dk, g.dv, *dinitial, ddecay, g.dlog_decay, g.dbeta


def linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    initial: Optional[tuple[torch.Tensor, Optional[torch.Tensor]]] = None,
    final: bool = False,
    decay: Any = None,
    log_decay: Optional[torch.Tensor] = None,
    beta: Optional[torch.Tensor] = None,
    **options: Any,
) -> Any:
    """heed.linear_attend with gradients: of q, k, v, the decays, beta and the initial state, and through the final one.

    q [B,H,T,D], k [B,G,S,D], v [B,G,S,E]; initial (s [B,N,F,E], z [B,N,F]); the options are heed.linear_attend's.
    Returns out [B,H,T,E], with final=True (out, state).

    >>> x = torch.ones(1, 1, 4, 2, requires_grad=True)
    >>> out, state = heed.torch.linear_attention(x, x, x, final=True)
    >>> state.s.sum().backward()
    """
    s, z = (None, None) if initial is None else initial
    require_plain("linear_attention", q, k, v, s, z, decay, log_decay, beta)
    decay = as_tensor(decay)
    if records_gradient(q, k, v, s, z, decay, log_decay, beta):
        out, *state = LinearAttend.apply(q, k, v, s, z, decay, log_decay, beta, options)
        return (out, LinearState(*state)) if final else out
    gates = {"decay": decay, "log_decay": log_decay, "beta": beta}
    return _core.linear_attend(q, k, v, initial=initial, final=final, **gates, **options)


class InfiniState(NamedTuple):
    """What Infini-attention carries from call to call: M [B,G,D,E] and z [B,G,D], tensors that gradients pass through,
    and the memory itself, which also holds the tokens of a segment that is not complete."""

    m: torch.Tensor
    z: torch.Tensor
    memory: InfiniMemory

    def detach(self) -> InfiniState:
        return InfiniState(self.m.detach(), self.z.detach(), self.memory)


class InfiniAttend(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, q, k, v, gates, memory_q, memory_k, sinks, alibi_slopes, m, z, before, moved, options
    ):
        given = {"memory_q": memory_q, "memory_k": memory_k, "sinks": sinks, "alibi_slopes": alibi_slopes}
        forward_options = {name: value for name, value in options.items() if name != "unroll"}
        out = _core.infini_attend(q, k, v, gates, moved, **given, **forward_options)
        ctx.save_for_backward(q, k, v, gates, memory_q, memory_k, sinks, alibi_slopes)
        ctx.before = before
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out, torch.from_numpy(moved.m), torch.from_numpy(moved.z)

    @staticmethod
    def backward(ctx, dout, dm, dz):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            saved = ctx.saved_tensors
            gradients = InfiniAttend.gradients(ctx, saved, dout, dm, dz)
        return *differentiated_once("infini_attention", gradients, (*saved, dout, dm, dz)), None, None, None

    @staticmethod
    def gradients(ctx, saved, dout, dm, dz):  # type: ignore[no-untyped-def]
        q, k, v, gates, memory_q, memory_k, sinks, alibi_slopes = saved
        if dout is None:
            dout = q.new_zeros(()).expand(q.shape[0], q.shape[1], q.shape[2], v.shape[3])
        needs = ctx.needs_input_grad
        g = _core.infini_attend_backward(
            q,
            k,
            v,
            gates,
            dout,
            ctx.before,
            memory_q=memory_q,
            memory_k=memory_k,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            dgates=needs[3],
            dsinks=needs[6],
            dalibi_slopes=needs[7],
            dm=needs[8],
            dz=needs[9],
            after_dm=dm,
            after_dz=dz,
            **ctx.options,
        )
        small = (
            None if gradient is None else gradient.to(of.dtype)
            for gradient, of in ((g.dgates, gates), (g.dsinks, sinks), (g.dalibi_slopes, alibi_slopes))
        )
        dgates, dsinks, dslopes = small
        return g.dq, g.dk, g.dv, dgates, g.dmemory_q, g.dmemory_k, dsinks, dslopes, g.dm, g.dz


def infini_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: torch.Tensor,
    state: Optional[InfiniState] = None,
    *,
    memory_q: Optional[torch.Tensor] = None,
    memory_k: Optional[torch.Tensor] = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    unroll: int = 0,
    **options: Any,
) -> tuple[torch.Tensor, InfiniState]:
    """heed.infini_attend with gradients: of q, k, v, gates and what came before, through the memory between calls.

    q [B,H,T,D], k [B,G,T,D], v [B,G,T,E], gates [H]; the options are heed.infini_attend's. Returns out [B,H,T,E] and
    the state to give to the call with what follows; the state that came in is left as it was. state.detach() cuts the
    gradient between calls, unroll within one. Calls that gradients pass through are whole segments, but for the last.

    >>> x, gates = torch.ones(1, 1, 4, 2, requires_grad=True), torch.zeros(1, requires_grad=True)
    >>> out, state = heed.torch.infini_attention(x, x, x, gates, segment=2)
    >>> out.sum().backward()
    """
    m, z = (None, None) if state is None else (state.m, state.z)
    require_plain("infini_attention", q, k, v, gates, memory_q, memory_k, m, z)
    before = InfiniMemory() if state is None else state.memory
    moved = before.clone()
    sinks, alibi_slopes = as_tensor(sinks), as_tensor(alibi_slopes)
    given = (memory_q, memory_k, sinks, alibi_slopes)
    if records_gradient(q, k, v, gates, *given, m, z):
        out, m, z = InfiniAttend.apply(q, k, v, gates, *given, m, z, before, moved, {**options, "unroll": unroll})
    else:
        out = _core.infini_attend(
            q,
            k,
            v,
            gates,
            moved,
            memory_q=memory_q,
            memory_k=memory_k,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            **options,
        )
        m, z = torch.from_numpy(moved.m), torch.from_numpy(moved.z)
    return out, InfiniState(m, z, moved)
