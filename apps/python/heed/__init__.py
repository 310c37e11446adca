"""heed: an attention engine. Every option with every other, forward and backward, on NumPy arrays, PyTorch tensors and
anything else with DLPack, without copies.

Letters: B batch entries, H query heads, G key/value heads, T queries, S keys, D size of a query and key head, E size of
a value head.
"""
from ._core import (
    Context as Context,
    Error as Error,
    attend as attend,
    attend_backward as attend_backward,
    explain as explain,
)
