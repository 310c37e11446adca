"""heed for PyTorch, on the CPU: the same operations, differentiable. heed does not link to PyTorch, nor PyTorch to it.

from heed.torch import scaled_dot_product_attention   # in the place of torch.nn.functional's
"""

from ._torch_attention import attend as attend
from ._torch_attention import scaled_dot_product_attention as scaled_dot_product_attention
from ._torch_flex import flex_attention as flex_attention
from ._torch_long import InfiniState as InfiniState
from ._torch_long import infini_attention as infini_attention
from ._torch_long import linear_attention as linear_attention
from ._torch_long import rope as rope
from ._torch_long import rotate as rotate
from ._transformers import register_transformers as register_transformers
from ._transformers import transformers_attention as transformers_attention
