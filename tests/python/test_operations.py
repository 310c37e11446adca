"""The rest of the public API against NumPy, and gradients against differences."""

import copy
import json
import pathlib
import pickle

import numpy as np
import pytest

import heed
import plain

DATA = pathlib.Path(__file__).resolve().parents[1] / "golden" / "data"


def difference(function, x, upstream, step=1e-6):
    """Gradient of sum(upstream * function(x)) by central differences."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (upstream * (function(up) - function(down))).sum() / (2 * step)
    return gradient


def test_weights_and_statistics(small):
    q, k, _ = small("float64")
    options = {"causal": True, "softcap": 3.0, "alibi_slopes": heed.alibi_slopes(4), "sinks": [0.1, 0.2, 0.3, 0.4]}
    weights = plain.attention(q, k, k, **options)["weights"]
    assert np.allclose(heed.attention_weights(q, k, **options), weights, atol=1e-12)
    some = heed.attention_weights(q, k, batches=[1], heads=[3, 0], rows=[4, 4, 1], **options)
    assert np.allclose(some, weights[[1]][:, [3, 0]][:, :, [4, 4, 1]], atol=1e-12)

    statistics = heed.attention_statistics(q, k, mass_window=(1, 0), **options)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(np.where(weights > 0, weights * np.log(weights), 0), -1)
    assert np.allclose(statistics.entropy, entropy) and np.allclose(statistics.max_weight, weights.max(-1))
    assert np.array_equal(statistics.argmax, weights.argmax(-1)) and statistics.argmax.dtype == np.int64
    assert np.allclose(statistics.first_mass, weights[..., 0])
    place = np.arange(5)[:, None] + 2
    near = (np.arange(7) >= place - 1) & (np.arange(7) <= place)
    assert np.allclose(statistics.window_mass, (weights * near).sum(-1))
    fewer = heed.attention_statistics(q, k, argmax=False, entropy=np.empty((2, 4, 5)), **options)
    assert fewer.argmax is None and np.allclose(fewer.entropy, entropy)
    with pytest.raises(ValueError, match=r"rows: expected None for all"):
        heed.attention_weights(q, k, rows=[])


@pytest.mark.parametrize("pooling, pool", [("mean", np.mean), ("max", np.max)])
def test_map(small, pooling, pool):
    q, k, _ = small("float64")
    weights = plain.attention(q, k, k)["weights"]
    cells = heed.attention_map(q, k, size=(2, 3), pooling=pooling, heads=[1])
    for r, c in np.ndindex(2, 3):
        rows = slice(r * 5 // 2, -(-(r + 1) * 5 // 2))
        keys = slice(c * 7 // 3, -(-(c + 1) * 7 // 3))
        assert np.allclose(cells.values[:, 0, r, c], pool(weights[:, 1, rows, keys], (1, 2)))
    assert heed.attention_map(q, k).shape == (2, 4, 5, 7)
    assert np.asarray(cells).shape == (2, 1, 2, 3)


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_rope(rng, pairing):
    x = rng.standard_normal((2, 3, 4, 6))
    table = heed.rope_table(heed.Rope(4, theta=50.0, pairing=pairing))
    positions = np.array([[0, 5, -3, 1000], [7, 7, 0, 2]])
    angle = positions[:, None, :, None] * np.array(table.frequencies)
    first, second = (slice(0, 2), slice(2, 4)) if pairing == "halves" else (slice(0, 4, 2), slice(1, 4, 2))
    expected = x.copy()
    expected[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    expected[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
    rotated = heed.rope(x, table, positions=positions)
    assert np.allclose(rotated, expected)
    assert np.allclose(heed.rope_backward(rotated, table, positions=positions), x)
    assert np.array_equal(heed.rope(x, table, first=2), heed.rope(x, table, positions=[2, 3, 4, 5]))
    place = x.copy()
    assert heed.rope(place, table, positions=positions, out=place) is place and np.allclose(place, expected)
    other = heed.rope_table(heed.Rope(4, theta=900.0, pairing=pairing))
    assert np.allclose(
        heed.rerotate(rotated, table, other, positions=positions), heed.rope(x, other, positions=positions)
    )


def test_rope_scalings():
    scalings = [
        heed.RopeLinear(4.0),
        heed.RopeNtk(4.0),
        heed.RopeDynamicNtk(4.0, 128),
        heed.RopeYarn(4.0, 128),
        heed.RopeLlama3(),
        heed.RopeLongRope(128, [1.0] * 16, [2.0] * 16),
        heed.RopeProportional(0.5),
    ]
    plain_table = heed.rope_table(heed.Rope(32))
    for scaling in scalings:
        rope = heed.Rope(32, scaling=scaling)
        assert type(rope.scaling) is type(scaling) and heed.rope_table(rope, 1024) != plain_table
        assert rope.depends_on_length == isinstance(scaling, (heed.RopeDynamicNtk, heed.RopeLongRope))
    assert heed.Rope(32).scaling is None and heed.rope_table(heed.Rope(32)) == plain_table
    half = np.array(heed.rope_table(heed.Rope(32, scaling=heed.RopeLinear(2.0))).frequencies)
    assert np.allclose(half * 2, plain_table.frequencies)
    with pytest.raises(ValueError):
        heed.rope_table(heed.Rope(31))


def test_configs():
    for path in sorted((DATA / "configs").glob("*.json")):
        if path.stem == "elements":
            continue
        text = path.read_text()
        text = json.dumps(json.loads(text).get("config", json.loads(text)))
        assert heed.parameters(heed.model_from_config(text)).total > 0, path
    assert isinstance(heed.rope_from_config('{"head_dim": 64, "rope_theta": 1e6}').kinds[0].rope, heed.Rope)
    with pytest.raises(ValueError):
        heed.rope_from_config("{")


def test_other_positions(rng):
    table, positions = rng.standard_normal((5, 3)), np.array([[1, 4], [0, 1]])
    assert np.array_equal(heed.learned_positions(table, positions), table[positions])
    assert np.array_equal(heed.learned_positions(table, [0, 1], offset=2), table[None, 2:4])
    held = np.ones((2, 2, 3))
    heed.learned_positions(table, positions, add=True, out=held)
    assert np.allclose(held, 1 + table[positions])
    dout = rng.standard_normal((2, 2, 3))
    expected = np.zeros_like(table)
    np.add.at(expected, positions, dout)
    assert np.allclose(heed.learned_positions_backward(dout, positions, 5), expected)
    with pytest.raises(ValueError):
        heed.learned_positions(table, [5])

    bias_table = rng.standard_normal((8, 2))
    bias = heed.relative_bias(bias_table, 4, 6, buckets=8, max_distance=16)
    for i, j in np.ndindex(4, 6):
        bucket = heed.relative_bucket(j - (i + 2), buckets=8, max_distance=16)
        assert np.array_equal(bias[0, :, i, j], bias_table[bucket])
    upstream = rng.standard_normal(bias.shape)
    got = heed.relative_bias_backward(upstream, buckets=8, max_distance=16)
    assert np.allclose((got * bias_table).sum(), (upstream * bias).sum())

    waves = heed.sinusoids(3, 6, first=5, layout="halves")
    angle = np.arange(5, 8)[:, None] * 10000.0 ** (-np.arange(3) / 3)
    assert np.allclose(waves, np.concatenate([np.sin(angle), np.cos(angle)], 1), atol=1e-6)


def linear_plain(q, k, v, s, z, decay, epsilon, phi):
    h, g = q.shape[1], k.shape[1]
    out = np.zeros((*q.shape[:3], v.shape[3]))
    s, z = s.copy(), z.copy()
    for t in range(q.shape[2]):
        s = decay[None, :, None, None] * s + np.einsum("bgd,bge->bgde", phi(k[:, :, t]), v[:, :, t])
        z = decay[None, :, None] * z + phi(k[:, :, t])
        for head in range(h):
            f, n = phi(q[:, head, t]), head // (h // g)
            out[:, head, t] = np.einsum("bd,bde->be", f, s[:, n]) / ((f * z[:, n]).sum(-1) + epsilon)[:, None]
    return out, s, z


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@pytest.mark.parametrize("form", ["automatic", "recurrent", "chunked", "quadratic"])
def test_linear_attention(rng, form):
    q, k, v = (rng.standard_normal(x) for x in ((2, 4, 9, 3), (2, 2, 9, 3), (2, 2, 9, 5)))
    s, z, decay = rng.random((2, 2, 3, 5)), rng.random((2, 2, 3)), np.array([0.9, 0.5])
    expected = linear_plain(q, k, v, s, z, decay, 1e-6, elu_plus_one)
    out, state = heed.linear_attend(q, k, v, decay=decay, initial=(s, z), final=True, form=form)
    for got, wanted in zip((out, *state), expected):
        assert np.allclose(got, wanted)
    step = heed.LinearState(s.copy(), z.copy())
    for t in range(9):
        row = heed.linear_attend_step(q[:, :, t], k[:, :, t], v[:, :, t], step, decay=decay)
        assert np.allclose(row, expected[0][:, :, t])
    assert np.allclose(step.s, expected[1]) and np.allclose(step.z, expected[2])


def test_linear_attention_gradients_and_own_features(rng):
    q, k, v = (rng.standard_normal(x) for x in ((1, 2, 4, 3), (1, 1, 4, 3), (1, 1, 4, 2)))
    s, z, dout = rng.random((1, 1, 3, 2)), rng.random((1, 1, 3)), rng.standard_normal((1, 2, 4, 2))
    square = heed.FeatureFunction(lambda x: x * x, lambda x, dy: 2 * x * dy)
    for feature in ("elu_plus_one", square):
        run = lambda q=q, k=k, v=v, s=s, z=z: heed.linear_attend(q, k, v, feature=feature, initial=(s, z))  # noqa: E731
        got = heed.linear_attend_backward(q, k, v, dout, feature=feature, initial=(s, z), dinitial=True)
        named = {
            "q": (q, got.dq),
            "k": (k, got.dk),
            "v": (v, got.dv),
            "s": (s, got.dinitial.s),
            "z": (z, got.dinitial.z),
        }
        for name, (x, gradient) in named.items():
            assert np.allclose(gradient, difference(lambda y: run(**{name: y}), x, dout), atol=1e-6), name
    decay = np.array([0.9, 0.4])
    got = heed.linear_attend_backward(q, k, v, dout, decay=decay, ddecay=True)
    assert np.allclose(got.ddecay, difference(lambda y: heed.linear_attend(q, k, v, decay=y), decay, dout), atol=1e-6)
    wider = heed.FeatureFunction(lambda x: np.concatenate([np.exp(x), np.exp(-x)]), size=6)
    mapped = [np.concatenate([np.exp(x), np.exp(-x)], -1) for x in (q, k)]
    assert np.allclose(heed.linear_attend(q, k, v, feature=wider), heed.linear_attend(*mapped, v, feature="identity"))

    def broken(x):
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        heed.linear_attend(q, k, v, feature=heed.FeatureFunction(broken))
    with pytest.raises(ValueError, match=r"result: expected \[3\] of f64"):
        heed.linear_attend(q, k, v, feature=heed.FeatureFunction(lambda x: x[:2]))


def infini_plain(q, k, v, gates, segment, delta):
    """One key/value head for each query head, float64."""
    b, h, t, d = q.shape
    m, z = np.zeros((b, h, d, v.shape[3])), np.zeros((b, h, d))
    out, open_ = np.zeros((b, h, t, v.shape[3])), 1 / (1 + np.exp(-gates))[None, :, None, None]
    for begin in range(0, t, segment):
        part = slice(begin, min(begin + segment, t))
        local = plain.attention(q[:, :, part], k[:, :, part], v[:, :, part], causal=True)["out"]
        fq, fk = elu_plus_one(q[:, :, part]), elu_plus_one(k[:, :, part])
        if begin == 0:
            out[:, :, part] = local
        else:
            recalled = fq @ m / np.einsum("bhtd,bhd->bht", fq, z)[..., None]
            out[:, :, part] = open_ * recalled + (1 - open_) * local
        if part.stop - part.start == segment:
            known = fk @ m / np.einsum("bhtd,bhd->bht", fk, z)[..., None] if delta and begin else 0
            m, z = m + np.einsum("bhtd,bhte->bhde", fk, v[:, :, part] - known), z + fk.sum(2)
    return out, m, z


@pytest.mark.parametrize("update", ["linear", "delta"])
def test_infini_attention(rng, update):
    q, k, v, gates = (rng.standard_normal(x) for x in ((2, 2, 11, 3), (2, 2, 11, 3), (2, 2, 11, 4), (2,)))
    expected, m, z = infini_plain(q, k, v, gates, 4, update == "delta")
    memory = heed.InfiniMemory()
    assert memory.m is None
    out = heed.infini_attend(q, k, v, gates, memory, segment=4, update=update)
    assert np.allclose(out, expected) and np.allclose(memory.m, m) and np.allclose(memory.z, z)
    assert (memory.segments, memory.pending) == (2, 3) and memory.bytes > 0
    split = heed.InfiniMemory()
    rows = []
    for begin, end in ((0, 1), (1, 6), (6, 11)):
        rows.append(
            heed.infini_attend(*(x[:, :, begin:end] for x in (q, k, v)), gates, split, segment=4, update=update)
        )
        split = pickle.loads(pickle.dumps(copy.deepcopy(split)))
    assert np.allclose(np.concatenate(rows, 2), expected) and np.allclose(split.m, memory.m)

    dout, before = rng.standard_normal(out.shape), heed.InfiniMemory()
    got = heed.infini_attend_backward(q, k, v, gates, dout, before, segment=4, update=update)
    run = lambda **new: heed.infini_attend(  # noqa: E731
        **{**dict(q=q, k=k, v=v, gates=gates), **new}, memory=heed.InfiniMemory(), segment=4, update=update
    )
    for name, gradient in (("gates", got.dgates), ("k", got.dk)):
        x = {"gates": gates, "k": k}[name]
        assert np.allclose(gradient, difference(lambda y: run(**{name: y}), x, dout), atol=1e-5), name
    again = heed.InfiniMemory(memory.m, memory.z, memory.segments)
    assert again.segments == 2 and np.array_equal(again.m, memory.m)


def test_mla(rng):
    b, h, t, s, n, p, r, e = 2, 3, 4, 6, 5, 2, 7, 3
    q, latent, rotary = (rng.standard_normal(x) for x in ((b, h, t, n + p), (b, s, r), (b, s, p)))
    up_key, up_value = rng.standard_normal((h, n, r)), rng.standard_normal((h, e, r))
    keys = np.concatenate([np.einsum("hnr,bsr->bhsn", up_key, latent), np.repeat(rotary[:, None], h, 1)], -1)
    values = np.einsum("hvr,bsr->bhsv", up_value, latent)
    dout = rng.standard_normal((b, h, t, e))
    expected = plain.attention(q, keys, values, causal=True, dout=dout)
    out, lse = heed.mla_attend(q, latent, rotary, up_key, up_value, causal=True, lse=True)
    assert np.allclose(out, expected["out"]) and np.allclose(lse, expected["lse"])
    absorbed = heed.mla_attend_absorbed(q, np.concatenate([latent, rotary], -1), up_key, up_value, causal=True)
    assert np.allclose(absorbed, out)
    got = heed.mla_attend_backward(q, latent, rotary, up_key, up_value, out, lse, dout, causal=True)
    assert np.allclose(got.dq, expected["dq"])
    assert np.allclose(got.drotary_key, expected["dk"][..., n:].sum(1))
    assert np.allclose(got.dup_value, np.einsum("bhsv,bsr->hvr", expected["dv"], latent))
    assert np.allclose(got.dup_key, np.einsum("bhsn,bsr->hnr", expected["dk"][..., :n], latent))


def test_merge(small, rng):
    q, k, v = small("float64")
    whole, lse = heed.attend(q, k, v, lse=True)
    parts = [heed.attend(q, k[:, :, x], v[:, :, x], lse=True) for x in (slice(0, 3), slice(3, 4), slice(4, 7))]
    merged, sums = heed.merge(parts)
    assert np.allclose(merged, whole) and np.allclose(sums, lse)
    dout = rng.standard_normal(whole.shape)
    gradients = heed.merge_backward(parts, dout)
    out, lse = parts[1]
    replaced = lambda o, m: heed.merge([parts[0], (o, m), parts[2]])[0]  # noqa: E731
    assert np.allclose(
        gradients[1][0][:1, :1],
        difference(
            lambda x: replaced(np.concatenate([np.concatenate([x, out[:1, 1:]], 1), out[1:]]), lse)[:1, :1],
            out[:1, :1],
            dout[:1, :1],
        ),
        atol=1e-6,
    )
    assert np.allclose(gradients[1][1], difference(lambda x: replaced(out, x), lse, dout), atol=1e-6)
    with pytest.raises(ValueError, match="parts: expected at least one"):
        heed.merge([])
    with pytest.raises(ValueError, match=r"parts: expected pairs"):
        heed.merge([(*parts[0], 3)])


def test_matmul_and_pooling(rng):
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((1, 4, 5))
    assert np.allclose(heed.matmul(a, b, alpha=2.0), 2 * a @ b)
    held = np.ones((2, 3, 5))
    assert heed.matmul(a, b, beta=1.0, out=held) is held and np.allclose(held, 1 + a @ b)
    with pytest.raises(ValueError, match="out: expected an array where beta is not 0"):
        heed.matmul(a, b, beta=1.0)
    weight = rng.standard_normal((8, 3))
    assert np.allclose(heed.pool_heads(weight, 4, 2), weight.reshape(2, 2, 2, 3).mean(1).reshape(4, 3))


def test_patterns_compose():
    pattern = heed.patterns.causal() & (heed.patterns.global_tokens([0]) | heed.patterns.window(2, 0))
    assert str(heed.Pattern(str(pattern))) == str(pattern) and bool(pattern) and not heed.Pattern()
    assert pattern.row(5, 6).tolist() == [True, False, False, True, True, True]
    assert heed.patterns.causal().cover((10, 20), (0, 10)) == "all"
    with pytest.raises(ValueError):
        heed.patterns.strided(0)


def test_sizes():
    model = heed.model_preset("llama-3-8b")
    assert heed.attention_kind(heed.with_attention(model, "mla")) == "mla"
    shape = heed.ModelShape(
        layers=2,
        d_model=8,
        heads=2,
        kv_heads=1,
        head_size=4,
        value_size=4,
        d_ff=16,
        vocab=10,
        kind="decoder",
        norm="rms_norm",
    )
    assert heed.attention_kind(shape) == "mqa" and heed.kv_bytes_per_token(shape, 4) == 2 * 2 * 4 * 4
    shape.latent = heed.LatentAttention(kv_rank=4, nope_size=2, rope_size=2, value_size=4)
    assert heed.attention_kind(shape) == "mla"
    with pytest.raises(TypeError, match="there is no field 'head'|there is no field 'depth'"):
        heed.ModelShape(depth=3)
    with pytest.raises(ValueError, match="llama-3-8b"):
        heed.model_preset("llama-3-8")


def test_safetensors(tmp_path, rng):
    tensors = {
        "a": rng.standard_normal((2, 3)).astype("float32"),
        "b": np.arange(5)[::-1],
        "c": np.array([True, False]),
    }
    path = tmp_path / "x.safetensors"
    heed.write_safetensors(path, tensors, {"who": "me"})
    file = heed.SafetensorsFile(path)
    assert sorted(file) == ["a", "b", "c"] and len(file) == 3 and file.metadata == {"who": "me"} and "a" in file
    for name, x in tensors.items():
        assert np.array_equal(file[name], x) and file[name].dtype == x.dtype and file.shape(name) == x.shape
    assert file.dtype("a") == "f32"
    with pytest.raises(OSError, match="none"):
        file["none"]
