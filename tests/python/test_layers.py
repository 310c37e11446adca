"""Operations that layers need, against NumPy."""
import math

import numpy as np
import pytest

import heed


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def gelu(x):
    return np.array([v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel()]).reshape(x.shape)


def test_linear_and_its_gradients(rng):
    x, w, b = rng.normal(size=(2, 5, 19)), rng.normal(size=(7, 19)), rng.normal(size=7)
    assert np.allclose(heed.linear(x, w, bias=b), x @ w.T + b)
    assert np.allclose(heed.linear(x, w, bias=b, activation="gelu"), gelu(x @ w.T + b))
    single = [a.astype("float32") for a in (x, w, b)]
    assert np.allclose(heed.linear(single[0], single[1], bias=single[2]), x @ w.T + b, atol=1e-5)
    dout = rng.normal(size=(2, 5, 7))
    dx, dw, db = heed.linear_backward(x, w, dout)
    assert np.allclose(dx, dout @ w) and np.allclose(db, dout.sum((0, 1)))
    assert np.allclose(dw, np.einsum("btn,btk->nk", dout, x))
    with pytest.raises(heed.Error, match="weight"):
        heed.linear(x, w[:, :3])


def test_norms(rng):
    x, r, w, b = rng.normal(size=(3, 40)), rng.normal(size=(3, 40)), rng.normal(size=40), rng.normal(size=40)
    s = x + r
    out, total = heed.layer_norm(x, weight=w, bias=b, residual=r)
    assert np.allclose(total, s)
    assert np.allclose(out, (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5) * w + b)
    assert np.allclose(heed.rms_norm(x, weight=w, weight_offset=1.0, eps=1e-6),
                       x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 + w))
    dx, dw, db = heed.layer_norm_backward(s, np.ones_like(s), weight=w)
    assert np.allclose(dx.sum(-1), 0) and np.allclose(db, 3)


@pytest.mark.parametrize("name, slope", [("relu", lambda x: (x > 0) * 1.0), ("tanh", lambda x: 1 - np.tanh(x) ** 2)])
def test_activations(rng, name, slope):
    x, up = rng.normal(size=(4, 9)), rng.normal(size=(4, 9))
    value = np.maximum(x, 0) if name == "relu" else np.tanh(x)
    assert np.allclose(heed.activate(x, name, up=up), value * up)
    dx, dup = heed.activate_backward(x, name, np.ones_like(x), up=up)
    assert np.allclose(dx, slope(x) * up) and np.allclose(dup, value)
    with pytest.raises(heed.Error, match="maxout"):
        heed.activate(x, "maxout")


def test_embedding_dropout_and_losses(rng):
    table = rng.normal(size=(11, 6))
    assert np.allclose(heed.embedding(np.array([[1, 2], [10, 0]]), table, scale=2.0), 2 * table[[[1, 2], [10, 0]]])
    kept = heed.dropout(np.ones((50, 40), "float32"), 0.25, seed=3)
    assert set(np.unique(kept)) == {0.0, np.float32(1 / 0.75)} and abs((kept > 0).mean() - 0.75) < 0.05
    h, targets = rng.normal(size=(5, 6)), np.array([1, -100, 10, 3, 3])
    z = h @ table.T
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    rows = [0, 2, 3, 4]
    expected = -np.log(p[rows, targets[rows]]).mean()
    loss, dz = heed.cross_entropy(z, targets, gradient=True)
    one_hot = np.zeros_like(z)
    one_hot[rows, targets[rows]] = 1
    gradient = (p - one_hot) * (targets >= 0)[:, None] / 4
    assert loss == pytest.approx(expected) and np.allclose(dz, gradient)
    loss, dh, dw = heed.linear_cross_entropy(h, table, targets, gradient=True)
    assert loss == pytest.approx(expected)
    assert np.allclose(dh, gradient @ table) and np.allclose(dw, gradient.T @ h)


@pytest.mark.parametrize("form, error", [("int8", 0.012), ("int4", 0.12)])
def test_quantized_weights(rng, form, error):
    w, x = rng.normal(size=(33, 256)).astype("float32"), rng.normal(size=(7, 256)).astype("float32")
    small = heed.QuantizedMatrix(w, form)
    assert small.shape == (33, 256) and small.format == form and small.bytes < w.nbytes / 2
    assert np.abs(small.dequantize() - w).max() < np.abs(w).max() * (0.01 if form == "int8" else 0.15)
    out = heed.linear(x, small)
    assert np.linalg.norm(out - x @ w.T) < error * np.linalg.norm(x @ w.T)
    assert np.array_equal(heed.linear(x[3:4], small)[0], out[3])
