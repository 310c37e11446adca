"""ONNX's node tests of Attention, FlexAttention, LinearAttention and RotaryEmbedding, through heed. Skipped where onnx is
not installed; its wheel generates the tests."""

import warnings

import numpy as np
import pytest

import heed

onnx = pytest.importorskip("onnx")

from onnx.backend.test.case.node import collect_testcases  # noqa: E402

OPERATORS = ("Attention", "FlexAttention", "LinearAttention", "RotaryEmbedding")


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = collect_testcases(None)
    alone = [case for case in every if len(case.model.graph.node) == 1]
    return {case.name: case for case in alone if case.model.graph.node[0].op_type in OPERATORS}


CASES = cases()


def attributes(node):
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def to_heads(x, heads):
    """[B,T,H*D] as [B,H,T,D]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def from_heads(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attention_mask(mask, keys):
    """heed's options for attn_mask, whose last axis may be shorter than the keys: the others are hidden."""
    if mask is None:
        return {}
    hidden = False if mask.dtype == bool else -np.inf
    missing = keys - mask.shape[-1] if mask.shape[-1] != 1 else 0
    mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=hidden)
    return {"allow" if mask.dtype == bool else "bias": mask[(None,) * (4 - mask.ndim)]}


def places(rows, keys, batch, offset):
    """Queries behind `offset` keys (a number, or one for each batch entry); all moved so that none is below 0."""
    first = np.broadcast_to(np.asarray(offset, "int64").reshape(-1, 1), (batch, 1))
    shift = max(0, -int(first.min(initial=0)))
    keys_at = np.broadcast_to(np.arange(keys) + shift, (batch, keys)).copy()
    return {"query_positions": first + np.arange(rows) + shift, "key_positions": keys_at}


def scores(q, k, options, hides):
    """What softmax gets. Weights and their sums say it: log(weight) + lse."""
    if not hides:
        options = {name: options[name] for name in ("scale", "softcap") if name in options}
    weights = heed.attention_weights(q, k, **options)
    _, lse = heed.attend(q, k, k, lse=True, **options)
    with np.errstate(divide="ignore"):
        return np.where(weights > 0, np.log(weights) + np.where(np.isfinite(lse), lse, 0)[..., None], -np.inf)


def attention(
    q, k, v, mask=None, past_key=None, past_value=None, lengths=None, *, is_causal=0, scale=None, softcap=0.0,
    q_num_heads=None, kv_num_heads=None, qk_matmul_output_mode=0, softmax_precision=None, left_window_size=-1,
    right_window_size=-1,
):  # fmt: skip
    flat = q.ndim == 3
    if flat:
        q, k, v = (to_heads(x, n) for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    if past_key is not None:
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    batch, _, rows, _ = q.shape
    keys = k.shape[2]
    offset = past_key.shape[2] if past_key is not None else 0 if lengths is None else lengths - rows
    options = {**attention_mask(mask, keys), **places(rows, keys, batch, offset)}
    options.update(causal=bool(is_causal), window=(left_window_size, right_window_size), softcap=softcap)
    if scale is not None:
        options["scale"] = scale
    if lengths is not None:
        options["key_lengths"] = lengths
    out = heed.attend(q, k, v, **options)
    if qk_matmul_output_mode == 3:
        inside = heed.attention_weights(q, k, **options)
    else:
        inside = scores(q, k, options, hides=qk_matmul_output_mode == 2)
    return (from_heads(out) if flat else out), k, v, inside


def linear_attention(
    q, k, v, past=None, decay=None, beta=None, *, q_num_heads, kv_num_heads, update_rule=b"gated_delta", scale=0.0, chunk_size=64
):  # fmt: skip
    q, k, v = (to_heads(x, n) for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    options = {"feature": "identity", "normalise": False, "causal": True, "scale": scale or q.shape[3] ** -0.5}
    if b"delta" in update_rule:
        every_head = np.repeat(beta, kv_num_heads // beta.shape[2], 2)
        options.update(rule="delta", beta=to_heads(every_head, kv_num_heads)[..., 0])
    if decay is not None:
        decay = to_heads(decay, kv_num_heads)
        options["log_decay"] = decay[..., 0] if decay.shape[3] == 1 else decay
    initial = None if past is None else (past, None)
    out, state = heed.linear_attend(q, k, v, initial=initial, final=True, **options)
    return from_heads(out), state.s


def flex_attention(q, k, v, *, scale=None, score_mod=None, prob_mod=None, **others):
    torch = pytest.importorskip("torch")
    from heed._torch_flex_score import Score

    def run(graph, value):
        """The nodes of a subgraph, with torch's words for them."""
        words = {
            "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Tanh": torch.tanh,
            "Where": torch.where, "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le,
            "Shape": lambda x: torch.tensor([*q.shape[:3], k.shape[2]]), "Gather": lambda x, n, axis: x[n],
            "Range": lambda first, last, step: torch.arange(int(first), int(last), int(step)),
            "Reshape": lambda x, shape: x.reshape(shape.tolist()), "Cast": lambda x, to: x.to(torch.float32),
        }  # fmt: skip
        values = {x.name: torch.from_numpy(onnx.numpy_helper.to_array(x).copy()) for x in graph.initializer}
        values[graph.input[0].name] = value
        for node in graph.node:
            values[node.output[0]] = words[node.op_type](*(values[name] for name in node.input), **attributes(node))
        return values[graph.output[0].name]

    options = {} if scale is None else {"scale": scale}
    if score_mod is not None:
        form = run(score_mod, Score())
        if form.hidden is not None:
            options["allow"] = ~np.asarray(form.hidden)[(None,) * (4 - form.hidden.dim())]
        if form.added is not None:
            added = torch.as_tensor(form.added, dtype=torch.float32)
            options["bias"] = np.asarray(added[(None,) * (4 - added.dim())])
        if form.inner is not None:
            options["softcap"] = float(form.factor)
            assert abs(form.inner * options["softcap"] - 1) < 1e-6
    if prob_mod is not None:  # weights times a number: the result times it
        form = run(prob_mod, Score())
        assert form.added is None and form.hidden is None and form.inner is None
        v = v * np.asarray(form.factor, v.dtype)
    return (heed.attend(q, k, v, **options),)


def rotary_embedding(x, cosine, sine, positions=None, *, interleaved=0, num_heads=0, rotary_embedding_dim=0):
    rows = to_heads(x, num_heads) if x.ndim == 3 else x
    given = {} if positions is None else {"positions": positions}
    out = heed.rotate(rows, cosine, sine, pairing="interleaved" if interleaved else "halves", **given)
    return (from_heads(out) if x.ndim == 3 else out,)


FUNCTIONS = {
    "Attention": attention,
    "FlexAttention": flex_attention,
    "LinearAttention": linear_attention,
    "RotaryEmbedding": rotary_embedding,
}


def run_case(case):
    node = case.model.graph.node[0]
    function = FUNCTIONS[node.op_type]
    for given, expected in case.data_sets:
        inputs, outputs = iter(given), iter(expected)
        arguments = [next(inputs) if name else None for name in node.input]
        results = function(*arguments, **attributes(node))
        for name, result in zip(node.output, results):
            if name:
                want = next(outputs)
                assert result.shape == want.shape
                bound = 2e-2 if want.dtype.itemsize == 2 else 1e-4
                np.testing.assert_allclose(
                    np.asarray(result, "float64"), np.asarray(want, "float64"), rtol=bound, atol=bound / 10, err_msg=name
                )


def refusal(case):
    """What heed does not offer, by name."""
    node = case.model.graph.node[0]
    if node.op_type == "RotaryEmbedding" and not hasattr(heed, "rotate"):
        return "rotation by given cosines and sines"
    return None


@pytest.mark.parametrize("name", CASES)
def test_onnx(name):
    why = refusal(CASES[name])
    if why:
        pytest.skip(f"not offered: {why}")
    run_case(CASES[name])
