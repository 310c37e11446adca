"""What a score_mod says, found by handing it a score that notes what is done to it."""

from __future__ import annotations

import math
import numbers
from typing import Any, Callable, Optional

import torch

from ._core import Error

_is_mapped = torch._C._functorch.is_batchedtensor


def _refuse(what: str) -> Error:
    return Error(
        "[flex_attention] score_mod: expected a score that is multiplied, soft-capped (c * tanh(score / c)), added to and "
        f"hidden by where(..., score, -inf), got {what}"
    )


def _constant(x: Any) -> Optional[float]:
    """The number that `x` is at all indices; None where it differs, or has a gradient."""
    if isinstance(x, numbers.Real):
        return float(x)
    if isinstance(x, torch.Tensor) and not _is_mapped(x) and x.numel() == 1 and not x.requires_grad:
        return float(x.item())
    return None


class Score:
    """factor * core + added, but -inf where `hidden`; core is the score s, or tanh(inner * s)."""

    def __init__(self, factor: Any = 1.0, added: Any = None, hidden: Any = None, inner: Optional[float] = None) -> None:
        self.factor, self.added, self.hidden, self.inner = factor, added, hidden, inner

    def plus(self, other: Any) -> Score:
        if isinstance(other, Score):
            raise _refuse("a sum of two scores")
        return Score(self.factor, other if self.added is None else self.added + other, self.hidden, self.inner)

    def times(self, other: Any) -> Score:
        if isinstance(other, Score):
            raise _refuse("a product of two scores")
        constant = _constant(other)
        if self.hidden is not None and (constant is None or not constant > 0):
            raise _refuse("hidden scores times something that may not be above 0")
        other = other if constant is None else constant
        added = None if self.added is None else self.added * other
        return Score(self.factor * other, added, self.hidden, self.inner)

    def tanh(self) -> Score:
        inner = _constant(self.factor)
        if self.inner is not None or self.added is not None or self.hidden is not None or inner is None:
            raise _refuse("tanh of something else than a score times a constant")
        return Score(1.0, None, None, inner)

    def hide(self, where: Any) -> Score:
        return Score(self.factor, self.added, where if self.hidden is None else self.hidden | where, self.inner)

    def or_else(self, condition: Any, other: Score) -> Score:
        """where(condition, self, other), of scores that differ by what is added or hidden."""
        same = _constant(self.factor) is not None and _constant(self.factor) == _constant(other.factor)
        if not same or self.inner != other.inner:
            raise _refuse("one of two scores that differ by more than what is added")
        pairs = ((self.added, other.added, 0.0), (self.hidden, other.hidden, False))
        added, hidden = (
            None if a is None and b is None else _choose(condition, none if a is None else a, none if b is None else b)
            for a, b, none in pairs
        )
        return Score(self.factor, added, hidden, self.inner)

    # What Python's operators call; those of tensors come by __torch_function__.
    def __add__(self, other: Any) -> Score:
        return self.plus(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Score:
        return self.plus(-other)

    def __rsub__(self, other: Any) -> Score:
        return self.times(-1.0).plus(other)

    def __mul__(self, other: Any) -> Score:
        return self.times(other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Score:
        return self.times(1 / other)

    def __neg__(self) -> Score:
        return self.times(-1.0)

    def __bool__(self) -> bool:
        raise _refuse("a branch by the score")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("dtype", "device"):
            return torch.float32 if name == "dtype" else torch.device("cpu")
        return lambda *arguments, **keywords: Score.__torch_function__(name, (), (self, *arguments), keywords)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func if isinstance(func, str) else func.__name__
        rule = _RULES.get(name.strip("_"))
        if rule is None:
            raise _refuse(f"{name}()")
        try:
            return rule(*args, **(kwargs or {}))
        except TypeError as error:
            raise _refuse(f"{name}() with arguments that are not known: {error}") from error

    def _refuse_comparison(self, other: Any) -> Any:
        raise _refuse("a comparison of the score")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_comparison  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def _refuse_operator(self, *_: Any) -> Any:
        raise _refuse("a power, a remainder or a quotient of the score")

    __rtruediv__ = __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __abs__ = _refuse_operator


def _choose(condition: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
    return torch.where(condition, a, b)


def _where(condition: Any, a: Any, b: Any) -> Score:
    if isinstance(condition, Score):
        raise _refuse("where() by the score")
    if isinstance(a, Score) and isinstance(b, Score):
        return a.or_else(condition, b)
    score, other = (a, b) if isinstance(a, Score) else (b, a)
    if _constant(other) != -math.inf:
        raise _refuse("where() with something else than -inf beside the score")
    return score.hide(~condition if isinstance(a, Score) else condition)


def _sum(a: Any, b: Any, alpha: float = 1) -> Score:
    b = b if alpha == 1 else b * alpha
    return a.plus(b) if isinstance(a, Score) else b.plus(a)


def _product(a: Any, b: Any) -> Score:
    return a.times(b) if isinstance(a, Score) else b.times(a)


def _quotient(a: Any, b: Any) -> Score:
    if not isinstance(a, Score):
        raise _refuse("a division by the score")
    return a.times(1 / b)


def _difference(a: Any, b: Any, alpha: float = 1) -> Score:
    return _sum(a, -(b if alpha == 1 else b * alpha))


def _same(score: Score, *_: Any, **__: Any) -> Score:
    return score


def _scalar_like(value: float) -> Callable[..., torch.Tensor]:
    return lambda *_, **__: torch.tensor(value)


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "radd", "iadd"), _sum),
    **dict.fromkeys(("sub", "subtract", "isub"), _difference),
    "rsub": lambda a, b, alpha=1: _difference(b, a, alpha),
    **dict.fromkeys(("mul", "rmul", "imul", "multiply"), _product),
    **dict.fromkeys(("div", "truediv", "true_divide", "divide", "idiv"), _quotient),
    "rdiv": lambda a, b: _quotient(b, a),
    "rtruediv": lambda a, b: _quotient(b, a),
    **dict.fromkeys(("neg", "negative"), lambda score: score.times(-1.0)),
    "tanh": lambda score: score.tanh(),
    "where": _where,
    "masked_fill": lambda score, mask, value: _where(mask, value, score),
    **dict.fromkeys(("to", "float", "double", "type_as", "clone", "contiguous"), _same),
    "full_like": lambda score, fill_value, **_: torch.tensor(float(fill_value)),
    "zeros_like": _scalar_like(0.0),
    "ones_like": _scalar_like(1.0),
}


class ScoreForm:
    """factor * s, or softcap * tanh(factor / softcap * s), plus what is added, but for what is hidden. What depends on
    indices is computed for the rows that are asked for: [B,H,rows,S]."""

    def __init__(self, compute: Callable[[str, range], torch.Tensor], outline: dict[str, Any]) -> None:
        self._compute = compute
        constant, inner = outline["factor"], outline["inner"]
        self.factor, self.softcap = 1.0 if constant is None else constant, 0.0
        self.factors: Optional[Callable[[range], torch.Tensor]] = None
        if inner is not None:
            if constant is None:
                raise _refuse("tanh times something that is not a constant")
            self.factor, self.softcap = constant * inner, abs(constant)
        elif constant is None:
            self.factors = lambda rows: compute("factor", rows)
        self.adds, self.hides = outline["adds"], outline["hides"]
        self.added_needs_gradient = self.adds and self.added(range(1)).requires_grad

    def added(self, rows: range) -> torch.Tensor:
        return self._compute("added", rows)

    def hidden(self, rows: range) -> torch.Tensor:
        return self._compute("hidden", rows)


def _identity(score: Any, *_: Any) -> Any:
    return score


def captured_score(
    score_mod: Optional[Callable[..., Any]], mapped: Callable[[Any, range], Any], wide: torch.dtype
) -> ScoreForm:
    """`mapped(function, rows)` is `function` of scalars (b, h, q, k) at all indices of these rows."""
    score_mod = _identity if score_mod is None else score_mod

    def result(*indices: torch.Tensor) -> Score:
        got = score_mod(Score(), *indices)
        if not isinstance(got, Score):
            raise _refuse("a result that the score has no part in")
        return got

    def compute(part: str, rows: range) -> torch.Tensor:
        def one(*indices: torch.Tensor) -> torch.Tensor:
            dtype = torch.bool if part == "hidden" else wide
            value = getattr(result(*indices), part)
            return value.to(dtype) if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)

        return mapped(one, rows)

    outline: dict[str, Any] = {}

    def look(*indices: torch.Tensor) -> torch.Tensor:
        got = result(*indices)
        outline.update(factor=_constant(got.factor), inner=got.inner)
        outline.update(adds=got.added is not None, hides=got.hidden is not None)
        return torch.zeros(())

    mapped(look, range(1))
    return ScoreForm(compute, outline)
