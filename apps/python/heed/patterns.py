"""The building blocks of patterns: who sees whom. They compose with & and |, see heed.Pattern.

sinks_and_recent = causal() & (prefix([4]) | window(511, 0))
"""

from ._core import Pattern

causal = Pattern.causal
window = Pattern.window
padding = Pattern.padding
prefix = Pattern.prefix
document = Pattern.document
strided = Pattern.strided
fixed = Pattern.fixed
dilated = Pattern.dilated
global_tokens = Pattern.global_tokens
random_blocks = Pattern.random_blocks
blocks = Pattern.blocks
per_head = Pattern.per_head
parse = Pattern.parse
