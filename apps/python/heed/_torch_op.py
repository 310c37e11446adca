"""Attention as an operator that PyTorch knows, heed::attend, with its backward: what compilers, exporters, tracers, fake
tensors and the transforms of torch.func see in the place of a call into a library. Plain calls go past it: an operator
registered from Python costs tens of microseconds."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch.autograd import forward_ad

from . import _core
from ._core import Error

_TENSORS = (
    "bias alibi_slopes sinks allow query_lengths key_lengths cu_seqlens_q cu_seqlens_k query_positions key_positions "
    "dropout_keep seed"
).split()
_OPTIONS = (
    ", ".join(f"Tensor? {name}=None" for name in _TENSORS)
    + ", bool causal=False, bool top_left=False, int left=-1, int right=-1, float? scale=None, float softcap=0.0, "
    "float dropout=0.0, int dropout_offset=0, str pattern='', str kernel_name=''"
)
# PyTorch's code generator has a `kernel` of its own among the arguments, so that here it is kernel_name.
_NAMES = (*_TENSORS, *"causal top_left left right scale softcap dropout dropout_offset pattern kernel_name".split())

_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_transforms = torch._C._functorch.peek_interpreter_stack
_functionalize = torch._C._functorch.TransformType.Functionalize
_is_compiling = torch.compiler.is_compiling
_plain_types = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def is_watched() -> bool:
    """Does somebody follow what is computed, other than by requires_grad: a compiler, a tracer, a mode, a transform of
    torch.func, forward-mode differentiation?"""
    return (
        _is_compiling()
        or _dispatch_modes() != 0
        or _transforms() is not None
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def _decides(kind: type) -> bool:
    """Does a class of tensors say itself what operators do?"""
    own = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return any(name in vars(base) for base in own for name in ("__torch_dispatch__", "__torch_function__"))


def is_special(tensor: Any) -> bool:
    """Of a class that decides itself what operators do, be it only that results are of the class as well."""
    kind = type(tensor)
    if kind in _plain_types or not isinstance(tensor, torch.Tensor):
        return False
    return _decides(kind) or kind.__torch_function__ is not torch._C._disabled_torch_function_impl


def needs_operator(*tensors: Any) -> bool:
    if is_watched():
        return True
    for tensor in tensors:
        if type(tensor) not in _plain_types and is_special(tensor):
            return True
    return tensors[0].is_meta if isinstance(tensors[0], torch.Tensor) else False


def refuse_tangents(function: str, *tensors: Any) -> None:
    if forward_ad._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        raise Error(f"[{function}] tensors: expected none with a tangent, as it has no forward-mode derivative, got one")


def require_plain(function: str, *tensors: Any) -> None:
    """For what has no operator: refused rather than computed past those who follow it. (Under torch.compile it is a
    break in the graph, as any call into a library is.)"""
    if _is_compiling():
        return
    if _tracing_state() is not None or _dispatch_modes() != 0 or _transforms() is not None:
        raise Error(
            f"[{function}] tensors: expected plain ones, got those of a tracer, a mode or a transform of torch.func, "
            "which this function has no operator for"
        )
    refuse_tangents(function, *tensors)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and type(tensor) not in _plain_types and _decides(type(tensor)):
            raise Error(f"[{function}] tensors: expected plain ones, got {type(tensor).__name__}")


def _as_ints(value: Any) -> Optional[torch.Tensor]:
    return value if value is None or isinstance(value, torch.Tensor) else torch.as_tensor(value)


def operator_options(options: dict[str, Any]) -> dict[str, Any]:
    """heed.attend's options in the words of the operator's schema."""
    given = {name: value for name, value in options.items() if value is not None}
    result: dict[str, Any] = {}
    for pair, parts in (("lengths", ("query_lengths", "key_lengths")), ("cu_seqlens", ("cu_seqlens_q", "cu_seqlens_k"))):
        if pair in given:
            both = given.pop(pair)
            for part in parts:
                result[part] = _as_ints(both)
    if given.pop("context", None) is not None:
        raise Error("[attend] context: expected None where the call becomes an operator in a graph, got one")
    align = given.pop("align", "bottom_right")
    if align not in ("bottom_right", "top_left"):
        raise Error(f"[attend] align: expected one of 'bottom_right', 'top_left', got {align!r}")
    result["top_left"] = align == "top_left"
    result["left"], result["right"] = given.pop("window", (-1, -1))
    pattern = given.pop("pattern", "")
    result["pattern"] = pattern if isinstance(pattern, str) else pattern.text()
    seed = given.pop("seed", None)
    if seed is not None:
        result["seed"] = seed if isinstance(seed, torch.Tensor) else torch.tensor(seed, dtype=torch.int64)
    result["kernel_name"] = given.pop("kernel", "")
    for name, value in given.items():
        if name not in _NAMES:
            raise TypeError(f"attend() got an unexpected keyword argument '{name}'")
        result[name] = _as_ints(value) if name in _TENSORS else value
    return result


def _pad(values: Sequence[Any]) -> list[Any]:
    """Values that the schema has defaults for are left out of some calls."""
    defaults: dict[str, Any] = {
        "causal": False, "top_left": False, "left": -1, "right": -1, "softcap": 0.0, "dropout": 0.0,
        "dropout_offset": 0, "pattern": "", "kernel_name": "",
    }  # fmt: skip
    return [*values, *(defaults.get(name) for name in _NAMES[len(values) :])]


def _library_options(values: Sequence[Any]) -> dict[str, Any]:
    """The way back."""
    given = dict(zip(_NAMES, _pad(values)))
    seed, given["kernel"] = given.pop("seed"), given.pop("kernel_name")
    options = {name: value for name, value in given.items() if value is not None and value != ""}
    options["align"] = "top_left" if options.pop("top_left") else "bottom_right"
    options["window"] = (options.pop("left"), options.pop("right"))
    if seed is not None:
        options["seed"] = int(seed.item()) & (2**64 - 1)
    return options


@torch.library.custom_op(
    "heed::attend", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)"
)
def attend_operator(q, k, v, *values):  # type: ignore[no-untyped-def]
    return _core.attend(q, k, v, lse=True, **_library_options(values))


@torch.library.custom_op(
    "heed::attend_backward",
    mutates_args=(),
    schema=f"(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool[] needs, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def attend_backward_operator(dout, dlse, q, k, v, out, lse, needs, *values):  # type: ignore[no-untyped-def]
    options = _library_options(values)
    dout = out.new_zeros(()).expand(out.shape) if dout is None else dout
    g = _core.attend_backward(
        q, k, v, out, lse, dout, dlse=dlse, dbias=needs[0], dalibi_slopes=needs[1], dsinks=needs[2], **options
    )
    asked = ((g.dbias, "bias"), (g.dalibi_slopes, "alibi_slopes"), (g.dsinks, "sinks"))
    small = [q.new_empty(0) if x is None else x.to(options[name].dtype) for x, name in asked]
    return g.dq, g.dk, g.dv, *small


@attend_operator.register_fake
def _(q, k, v, *values):  # type: ignore[no-untyped-def]
    for name, x in (("q", q), ("k", k), ("v", v)):
        torch._check(x.dim() == 4, lambda: f"[attend] {name}: expected 4 axes, got {x.dim()}")
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=wide)


@attend_backward_operator.register_fake
def _(dout, dlse, q, k, v, out, lse, needs, *values):  # type: ignore[no-untyped-def]
    given = dict(zip(_NAMES, _pad(values)))
    small = [
        q.new_empty(given[name].shape, dtype=given[name].dtype) if need else q.new_empty(0)
        for need, name in zip(needs, ("bias", "alibi_slopes", "sinks"))
    ]
    return *(x.new_empty(x.shape) for x in (q, k, v)), *small


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, *values = inputs
    values = _pad(values)
    ctx.save_for_backward(q, k, v, *output, *values[: len(_TENSORS)])
    ctx.values = values[len(_TENSORS) :]
    ctx.count = len(inputs)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout, dlse, run=torch.ops.heed.attend_backward):  # type: ignore[no-untyped-def]
    if dout is None and dlse is None:
        return (None,) * ctx.count
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    needs = [bool(need) for need in ctx.needs_input_grad[3:6]]
    needs += [False] * (3 - len(needs))
    *main, dbias, dslopes, dsinks = run(dout, dlse, q, k, v, out, lse, needs, *tensors, *ctx.values)
    small = [x if need else None for x, need in zip((dbias, dslopes, dsinks), needs)]
    return (*main, *small, *(None,) * len(_NAMES))[: ctx.count]


attend_operator.register_autograd(_differentiate, setup_context=_save)


def _one_by_one(operator, size, in_dims, arguments):  # type: ignore[no-untyped-def]
    """Always right: a call for each entry."""
    results = []
    for n in range(size):
        entry = [x if dim is None else x.select(dim, n) for x, dim in zip(arguments, in_dims)]
        results.append(operator(*entry))
    return tuple(torch.stack(parts) for parts in zip(*results))


def _dims(in_dims, arguments):  # type: ignore[no-untyped-def]
    """A list among the arguments has a list of dims: none of them is mapped."""
    return [dim if isinstance(x, torch.Tensor) else None for x, dim in zip(arguments, in_dims)]


def _map_forward(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
    dims = _dims(in_dims, arguments)
    if all(dim is None for dim in dims[3:]) and not any(isinstance(x, torch.Tensor) for x in arguments[3:]):
        # Nothing is said of single batch entries: the mapped ones are more of them.
        q, k, v = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(arguments[:3], dims)
        )
        out, lse = torch.ops.heed.attend(*(x.flatten(0, 1) for x in (q, k, v)), *arguments[3:])
        batch = (info.batch_size, q.shape[1])
        return (out.unflatten(0, batch), lse.unflatten(0, batch)), (0, 0)
    return _one_by_one(torch.ops.heed.attend, info.batch_size, dims, arguments), (0, 0)


def _map_backward(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
    dims = _dims(in_dims, arguments)
    return _one_by_one(torch.ops.heed.attend_backward, info.batch_size, dims, arguments), (0,) * 6


attend_operator.register_vmap(_map_forward)
attend_backward_operator.register_vmap(_map_backward)


class TransformedBackward(torch.autograd.Function):
    """heed::attend_backward for the transforms of torch.func, which take no operator with a gradient from Python."""

    @staticmethod
    def forward(*arguments):  # type: ignore[no-untyped-def]
        return torch.ops.heed.attend_backward(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        pass

    @staticmethod
    def backward(ctx, *_):  # type: ignore[no-untyped-def]
        raise RuntimeError(
            "[attend] expected to be differentiated once, got a second time: heed has no second derivatives of it"
        )

    vmap = staticmethod(_map_backward)


class Transformed(torch.autograd.Function):
    """heed::attend, likewise."""

    @staticmethod
    def forward(*arguments):  # type: ignore[no-untyped-def]
        return torch.ops.heed.attend(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx, dout, dlse):  # type: ignore[no-untyped-def]
        return _differentiate(ctx, dout, dlse, TransformedBackward.apply)

    vmap = staticmethod(_map_forward)


def _register_flops() -> None:
    from torch.utils.flop_counter import register_flop_formula

    def products(q: Any, k: Any, v: Any) -> int:
        return int(q[0] * q[1] * q[2] * k[2])

    @register_flop_formula(torch.ops.heed.attend)
    def _(q, k, v, *_, **__):  # type: ignore[no-untyped-def]
        return 2 * products(q, k, v) * (q[3] + v[3])

    @register_flop_formula(torch.ops.heed.attend_backward)
    def _(dout, dlse, q, k, v, *_, **__):  # type: ignore[no-untyped-def]
        # Scores once more, dq and dk of D each; dp and dv of E each.
        return 2 * products(q, k, v) * (3 * q[3] + 2 * v[3])


_register_flops()


def _in_order(options: dict[str, Any]) -> list[Any]:
    given = {**dict(zip(_NAMES, _pad(()))), **operator_options(options)}
    return [given[name] for name in _NAMES]


def attend_backward_in_graph(  # type: ignore[no-untyped-def]
    dout, dlse, q, k, v, out, lse, needs: list[bool], options: dict[str, Any]
):
    """(dq, dk, dv, dbias, dalibi_slopes, dsinks) by the operator; those that `needs` does not ask for are empty."""
    return torch.ops.heed.attend_backward(dout, dlse, q, k, v, out, lse, needs, *_in_order(options))


def attend_in_graph(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
    """(out, lse) through the operator; `options` as heed.attend takes them."""
    if not _is_compiling():
        refuse_tangents("attend", q, k, v, *options.values())
        transform = _transforms()
        if transform is not None and transform.key() != _functionalize:
            return Transformed.apply(q, k, v, *_in_order(options))
    return torch.ops.heed.attend(q, k, v, **operator_options(options))
