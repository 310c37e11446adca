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
