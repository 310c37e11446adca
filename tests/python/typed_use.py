"""Read by mypy in test_typing.py: what a typed program gets from heed. Lines marked `wrong` must be errors."""

import numpy as np
import numpy.typing as npt

import heed

Floats = npt.NDArray[np.float32]
x: Floats = np.zeros((1, 1, 2, 4), np.float32)

out: Floats = heed.attend(x, x, x, causal=True, window=(3, 0), pattern="causal", alibi_slopes=[0.5])
out, lse = heed.attend(x, x, x, lse=True)
gradients = heed.attend_backward(x, x, x, out, lse, out, context=heed.Context(threads=1))
print(gradients.dq, gradients.dbias)
weights: Floats = heed.attention_weights(x, x, rows=[1])
cells: heed.AttentionMap = heed.attention_map(x, x, size=(2, 2))
state: heed.LinearState = heed.linear_attend(x, x, x, final=True)[1]
table: heed.RopeTable = heed.rope_table(heed.Rope(4, scaling=heed.RopeYarn(4.0, 128)))
rotated: Floats = heed.rope(x, table)
pattern: heed.Pattern = heed.patterns.causal() & heed.patterns.window(8, 0)
total: int = heed.parameters(heed.model_preset("llama-3-8b")).total
html: str = heed.walkthrough()._repr_html_()

heed.attend(x, x, x, casual=True)  # wrong
heed.attend(x, x, x, align="left")  # wrong
heed.attend(x, x)  # wrong
number: int = heed.attend(x, x, x)  # wrong
heed.attention_map(x, x, pooling="median")  # wrong
