"""Statistics of attention over a long text, without a T x T matrix. Needs NumPy alone.

The text is the source of Python's argparse module. Three heads look for: what followed this word before, what followed
these two words before, and what stands nearby. Of every row: how spread its weights are, where the largest lies.
"""

import argparse
import inspect
import re

import numpy as np

import heed

HEADS = ["after the same word", "after the same two words", "nearby"]


def vectors_of(words: list[str], size: int) -> np.ndarray:
    """A random direction of length 1 for each word of the vocabulary."""
    order = {word: n for n, word in enumerate(dict.fromkeys(words))}
    table = np.random.default_rng(0).standard_normal((len(order), size)).astype("float32")
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return table[[order[word] for word in words]]


def main() -> None:
    words = re.findall(r"\w+|[^\w\s]", inspect.getsource(argparse))[:12000]
    x = vectors_of(words, 64)
    before, before_that = np.roll(x, 1, 0), np.roll(x, 2, 0)
    none = np.zeros_like(x)
    # A query is what stands before and at its place; a key is what stands before it.
    queries = np.stack([np.concatenate(pair, 1) for pair in ((x, none), (x, before), (none, none))])[None]
    keys = np.stack([np.concatenate(pair, 1) for pair in ((before, none), (before, before_that), (none, none))])[None]

    options = {"causal": True, "scale": 16.0, "alibi_slopes": [0.001, 0.001, 0.25]}
    found = heed.attention_statistics(queries, keys, mass_window=(16, 0), **options)
    matrix = len(HEADS) * len(words) ** 2 * 4
    print(
        f"{len(words)} tokens; the weights would take {matrix / 1e9:.1f} GB, the statistics take "
        f"{sum(x.nbytes for x in found) / 1e6:.1f} MB"
    )
    for head, name in enumerate(HEADS):
        right = np.mean([words[found.argmax[0, head, t]] == words[t + 1] for t in range(len(words) - 1)])
        print(
            f"{name:25} entropy {found.entropy[0, head].mean():.2f} nats, largest weight "
            f"{found.max_weight[0, head].mean():.2f}, on the last 17 tokens {found.window_mass[0, head].mean():.2f}, "
            f"looks at the word that comes next: {right:.0%}"
        )
    picture = heed.attention_map(queries, keys, size=(48, 48), pooling="max", **options)
    with open("attention_map.html", "w", encoding="utf-8") as file:
        file.write(picture._repr_html_())
    print("attention_map.html shows all of it, 48 x 48 cells a head")


if __name__ == "__main__":
    main()
