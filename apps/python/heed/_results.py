"""Named tuples that functions return."""

from typing import Any, NamedTuple, Optional


class AttentionGradients(NamedTuple):
    """What attend_backward returns; None for what was not asked for."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Optional[Any] = None
    dsinks: Optional[Any] = None
    dalibi_slopes: Optional[Any] = None


class AttentionStatistics(NamedTuple):
    """What attention_statistics returns, each [B,H,T]; None for what was not asked for."""

    entropy: Any
    max_weight: Any
    argmax: Any
    window_mass: Any
    first_mass: Any


class ScoreParts(NamedTuple):
    """What score_parts returns: a weight, from its products to its share of the row."""

    products: Any
    dot: float
    scale: float
    scaled: float
    capped: float
    bias: float
    alibi: float
    score: float
    hidden_by: Optional[str]
    log_sum: float
    weight: float
    sink: float


class LinearState(NamedTuple):
    """What linear attention carries from call to call: s [B,N,F,E] and z [B,N,F] (None without normaliser)."""

    s: Any
    z: Optional[Any] = None


class LinearGradients(NamedTuple):
    """What linear_attend_backward returns; dinitial and what follows it on request."""

    dq: Any
    dk: Any
    dv: Any
    dinitial: Optional[LinearState] = None
    ddecay: Optional[Any] = None
    dlog_decay: Optional[Any] = None
    dbeta: Optional[Any] = None


class InfiniGradients(NamedTuple):
    """What infini_attend_backward returns; None for what was not asked for."""

    dq: Any
    dk: Any
    dv: Any
    dmemory_q: Optional[Any] = None
    dmemory_k: Optional[Any] = None
    dgates: Optional[Any] = None
    dsinks: Optional[Any] = None
    dalibi_slopes: Optional[Any] = None
    dm: Optional[Any] = None
    dz: Optional[Any] = None


class MlaGradients(NamedTuple):
    """What mla_attend_backward returns; None for what does not apply or was not asked for."""

    dq: Any
    dlatent: Any
    drotary_key: Optional[Any]
    dup_key: Any
    dup_value: Any
    dbias: Optional[Any] = None
    dsinks: Optional[Any] = None
    dalibi_slopes: Optional[Any] = None
