"""Linear attention with a decay per token and the delta rule, against the published recurrences in NumPy."""

import numpy as np
import pytest

import heed

RNG = np.random.default_rng(5)
GATED = {"feature": "identity", "normalise": False}


def inputs(heads=4, kv_heads=2, tokens=37, size=5, values=7, each_row=False):
    k = RNG.standard_normal((2, kv_heads, tokens, size))
    return {
        "q": RNG.standard_normal((2, heads, tokens, size)),
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": RNG.standard_normal((2, kv_heads, tokens, values)),
        "log_decay": -RNG.random((2, kv_heads, tokens, size) if each_row else (2, kv_heads, tokens)),
        "beta": RNG.random((2, kv_heads, tokens)),
        "s": RNG.standard_normal((2, kv_heads, size, values)),
    }


def recurrence(q, k, v, s, log_decay=None, beta=None, scale=1.0):
    """A token at a time, heads first; beta given: the delta rule."""
    group = q.shape[1] // k.shape[1]
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for t in range(q.shape[2]):
        if log_decay is not None:
            a = np.exp(log_decay[:, :, t])
            s = s * (a[..., None] if a.ndim == 3 else a[..., None, None])
        write = v[:, :, t]
        if beta is not None:
            write = beta[:, :, t, None] * (write - np.einsum("bhkv,bhk->bhv", s, k[:, :, t]))
        s = s + k[:, :, t, :, None] * write[:, :, None, :]
        out[:, :, t] = scale * np.einsum("bhkv,bhk->bhv", np.repeat(s, group, 1), q[:, :, t])
    return out, s


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("each_row", [False, True])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_every_rule_is_its_recurrence(rule, each_row, dtype):
    x = inputs(each_row=each_row)
    gates = {}
    if "gated" in rule:
        gates["log_decay"] = x["log_decay"]
    if "delta" in rule:
        gates["beta"] = x["beta"]
    expected, s = recurrence(x["q"], x["k"], x["v"], x["s"], scale=0.25, **gates)
    narrow = {name: array.astype(dtype) for name, array in x.items()}
    got, state = heed.linear_attend(
        narrow["q"],
        narrow["k"],
        narrow["v"],
        initial=(narrow["s"], None),
        final=True,
        scale=0.25,
        rule="delta" if "delta" in rule else "sum",
        **{name: narrow[name] for name in gates},
        **GATED,
    )
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    assert np.allclose(got, expected, atol=tolerance, rtol=tolerance)
    assert np.allclose(state.s, s, atol=tolerance, rtol=tolerance)


def test_gradients_of_gates_and_states():
    x = inputs(tokens=6, each_row=True)
    q, k, v, s = x["q"], x["k"], x["v"], x["s"]
    gates = {"log_decay": x["log_decay"], "beta": x["beta"], "rule": "delta", **GATED}
    dout = RNG.standard_normal((2, 4, 6, 7))
    ds = RNG.standard_normal(s.shape)
    g = heed.linear_attend_backward(
        q, k, v, dout, initial=(s, None), dfinal=(ds, None), dinitial=True, dlog_decay=True, dbeta=True, **gates
    )

    def loss():
        out, state = heed.linear_attend(q, k, v, initial=(s, None), final=True, **gates)
        return (out * dout).sum() + (state.s * ds).sum()

    wanted = ((q, g.dq), (k, g.dk), (v, g.dv), (s, g.dinitial.s), (x["log_decay"], g.dlog_decay), (x["beta"], g.dbeta))
    for array, gradient in wanted:
        assert gradient.shape == array.shape
        for n in range(0, array.size, array.size // 5):
            flat = array.reshape(-1)
            before = flat[n]
            flat[n] = before + 1e-5
            up = loss()
            flat[n] = before - 1e-5
            down = loss()
            flat[n] = before
            assert abs(gradient.reshape(-1)[n] - (up - down) / 2e-5) < 1e-6


def test_steps_and_packed_sequences_equal_the_whole():
    x = inputs()
    gates = {"log_decay": x["log_decay"], "beta": x["beta"]}
    whole, _ = recurrence(x["q"], x["k"], x["v"], np.zeros_like(x["s"]), **gates)
    state = heed.LinearState(np.zeros_like(x["s"]), None)
    for t in range(37):
        row = {name: gate[:, :, t] for name, gate in gates.items()}
        out = heed.linear_attend_step(*(x[n][:, :, t] for n in "qkv"), state, rule="delta", **row, **GATED)
        assert np.allclose(out, whole[:, :, t])
    pack = {name: np.concatenate(list(array), 1)[None] for name, array in x.items() if name != "s"}
    packed, states = heed.linear_attend(
        *(pack[n] for n in "qkv"),
        log_decay=pack["log_decay"],
        beta=pack["beta"],
        rule="delta",
        cu_seqlens=np.array([0, 37, 74]),
        final=True,
        **GATED,
    )
    assert np.allclose(packed[0], np.concatenate(list(whole), 1))
    assert states.s.shape == (2, 2, 5, 7)
    assert np.allclose(states.s, state.s)


def test_what_is_wrong_is_said():
    x = inputs()
    with pytest.raises(ValueError, match="normalise: expected false with the delta rule"):
        heed.linear_attend(x["q"], x["k"], x["v"], rule="delta")
    with pytest.raises(ValueError, match="rule: expected one of 'sum', 'delta'"):
        heed.linear_attend(x["q"], x["k"], x["v"], rule="gated")


def test_caches_hold_the_state_of_gated_layers():
    x = {name: array[:1].astype("float32") for name, array in inputs(heads=2, values=5).items()}
    sizes = {"kv_heads": 2, "head_size": 5, "value_size": 5, "pages": 1, "normalise": False}
    cache = heed.CachePool(heed.CacheConfig(kind="linear", **sizes)).create()
    empty = np.zeros((1, 2, 5, 5), "float32")
    whole, _ = recurrence(x["q"], x["k"], x["v"], empty, log_decay=x["log_decay"], beta=x["beta"])
    parts = []
    for a, b in ((0, 20), (20, 21), (21, 37)):
        part = {name: x[name][:, :, a:b] for name in ("q", "k", "v", "log_decay", "beta")}
        gates = {"log_decay": part["log_decay"], "beta": part["beta"], "rule": "delta"}
        parts.append(heed.cached_linear_attend(cache, part["q"], part["k"], part["v"], **gates, **GATED))
    assert np.allclose(np.concatenate(parts, 2), whole, atol=1e-5)
