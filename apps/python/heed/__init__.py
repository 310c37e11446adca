"""heed: an attention engine. Every option with every other, forward and backward, on NumPy arrays, PyTorch tensors and
anything else with DLPack, without copies.

    import heed
    out = heed.attend(q, k, v, causal=True)

Letters: B batch entries, H query heads, G key/value heads, T queries, S keys, D size of a query and key head, E size of
a value head. heed.torch has the same with gradients; heed.patterns says who sees whom.
"""

from . import patterns as patterns
from ._core import *  # noqa: F403
from ._core import __version__ as __version__
from ._pictures import AttentionMap as AttentionMap
from ._pictures import Walkthrough as Walkthrough
from ._pictures import WalkthroughStep as WalkthroughStep
from ._results import AttentionGradients as AttentionGradients
from ._results import AttentionStatistics as AttentionStatistics
from ._results import InfiniGradients as InfiniGradients
from ._results import LinearGradients as LinearGradients
from ._results import LinearState as LinearState
from ._results import MlaGradients as MlaGradients
from ._results import ScoreParts as ScoreParts
