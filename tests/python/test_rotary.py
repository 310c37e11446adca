"""Rotations by given cosines and sines, and scores before the softmax."""

import numpy as np
import pytest

import heed

RNG = np.random.default_rng(6)


def rotary_embedding(x, cosine, sine, interleaved):
    """ONNX's RotaryEmbedding, heads first; cosine and sine [B,T,n]."""
    n = cosine.shape[-1]
    c, s = cosine[:, None], sine[:, None]
    a, b = (x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2]) if interleaved else (x[..., :n], x[..., n : 2 * n])
    out = x.copy()
    first, second = c * a - s * b, s * a + c * b
    if interleaved:
        out[..., : 2 * n : 2], out[..., 1 : 2 * n : 2] = first, second
    else:
        out[..., :n], out[..., n : 2 * n] = first, second
    return out


@pytest.mark.parametrize("pairs", [1, 3, 4])
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_rotation_is_the_operator_of_onnx(pairing, pairs):
    x = RNG.standard_normal((2, 3, 5, 8)).astype("float32")
    cosine, sine = RNG.standard_normal((2, 50, pairs)).astype("float32")
    positions = RNG.integers(0, 50, (2, 5))
    expected = rotary_embedding(x, cosine[positions], sine[positions], pairing == "interleaved")
    assert np.allclose(heed.rotate(x, cosine, sine, positions=positions, pairing=pairing), expected, atol=1e-6)
    assert np.allclose(heed.rotate(x, cosine[positions], sine[positions], pairing=pairing), expected, atol=1e-6)
    back = heed.rotate_backward(x, cosine, sine, positions=positions, pairing=pairing)
    assert np.allclose(back, rotary_embedding(x, cosine[positions], -sine[positions], pairing == "interleaved"), atol=1e-6)


def test_tables_of_one_axis_are_rope():
    x = RNG.standard_normal((1, 2, 9, 8))
    table = heed.rope_table(heed.Rope(6))
    cosine, sine = heed.rotary_tables([table], [np.arange(9)])
    assert np.allclose(heed.rotate(x, cosine, sine), heed.rope(x, table))
    queries = heed.rotary_tables([table], [np.arange(9)], xpos="queries")[0]
    keys = heed.rotary_tables([table], [np.arange(9)], xpos="keys")[0]
    assert np.allclose(queries * keys, cosine * cosine)
    with pytest.raises(ValueError, match="positions: expected 1 arrays"):
        heed.rotary_tables([table], [])


def test_scores_of_every_stage():
    q, k = RNG.standard_normal((1, 2, 4, 5)), RNG.standard_normal((1, 1, 6, 5))
    bias = RNG.standard_normal((1, 2, 4, 6))
    options = {"softcap": 2.0, "bias": bias, "causal": True, "scale": 0.3}
    product = 0.3 * np.einsum("bhtd,bhsd->bhts", q, np.repeat(k, 2, 1))
    assert np.allclose(heed.attention_scores(q, k, **options), product)
    capped = 2 * np.tanh(product / 2)
    assert np.allclose(heed.attention_scores(q, k, stage="capped", **options), capped)
    hidden = np.arange(6) > np.arange(4)[:, None] + 2
    biased = np.where(hidden, -np.inf, capped + bias)
    assert np.allclose(heed.attention_scores(q, k, stage="biased", **options), biased)
    weight = np.exp(biased) / np.exp(biased).sum(-1, keepdims=True)
    assert np.allclose(heed.attention_scores(q, k, stage="weight", rows=[3, 0], **options), weight[:, :, [3, 0]])
