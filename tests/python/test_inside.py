"""What the page shows, from Python: queries and keys of a model, scores taken apart, heads switched off, the logit lens."""
import pathlib

import numpy
import pytest

import heed

MODELS = pathlib.Path(__file__).parent.parent / "golden" / "data" / "models"
TINY = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 2, "attention": {"heads": 2}}}


def first_row(name):
    """Ids of a text without padding, and what transformers gave for it."""
    file = heed.SafetensorsFile(MODELS / name / "expected.safetensors")
    return file["input_ids"][:1], {key: file[key] for key in file if "attention." in key}


@pytest.mark.parametrize("name", ["gpt2-scaled", "llama", "gemma2-softcap", "bloom-alibi", "mistral-window", "gpt-oss-sinks", "deepseek-v2-mla", "qwen3"])
def test_captured_queries_and_keys_give_the_weights_of_transformers(name):
    ids, want = first_row(name)
    kept = heed.load(MODELS / name).forward(ids, capture=("attention_inputs",))
    layers = [key for key in kept if key.startswith("attention_inputs.")]
    assert layers
    for key in layers:
        q, k, options = kept[key]["q"], kept[key]["k"], kept[key]["options"]
        theirs = want["attention." + key.split(".")[1]][0]
        weights = heed.attention_weights(q, k, **options)[0]
        assert numpy.abs(weights - theirs).max() < 1e-5, key
        for head, row, column in ((0, 4, 1), (q.shape[1] - 1, 5, 5), (1, 2, 4), (0, 5, 0)):
            parts = heed.score_parts(q, k, row=row, column=column, head=head, **options)
            assert parts.weight == pytest.approx(theirs[head, row, column], abs=1e-5)
            assert parts.products.sum() == pytest.approx(parts.dot, rel=1e-9, abs=1e-12)
            assert parts.scaled == pytest.approx(parts.scale * parts.dot)
            assert parts.score == pytest.approx(parts.capped + parts.bias + parts.alibi)
            assert (parts.hidden_by is None) == (theirs[head, row, column] > 0)
            if parts.hidden_by is None:
                assert parts.weight == pytest.approx(numpy.exp(parts.score - parts.log_sum), rel=1e-9)


def test_an_encoder_decoder_has_three_kinds():
    ids, want = first_row("t5")
    decoder_ids = heed.SafetensorsFile(MODELS / "t5" / "expected.safetensors")["decoder_input_ids"][:1]
    kept = heed.load(MODELS / "t5").forward(ids, decoder_input_ids=decoder_ids, capture=("attention_inputs",))
    for kind in ("encoder", "decoder", "cross"):
        one = kept[f"{kind}_attention_inputs.1"]
        weights = heed.attention_weights(one["q"], one["k"], **one["options"])[0]
        assert numpy.abs(weights - want[f"{kind}_attention.1"][0]).max() < 1e-5, kind
    parts = heed.score_parts(kept["encoder_attention_inputs.0"]["q"], kept["encoder_attention_inputs.0"]["k"], row=3, column=1, **kept["encoder_attention_inputs.0"]["options"])
    assert parts.bias != 0


def test_heads_switched_off():
    model = heed.load(MODELS / "gpt2-scaled")
    ids, _ = first_row("gpt2-scaled")
    plain = model.forward(ids)["logits"]
    layers = len([key for key in model.forward(ids, capture=("attention",)) if key.startswith("attention.")])
    heads = model.forward(ids, capture=("attention",))["attention.0"].shape[1]
    factors = numpy.ones((layers, heads), "float32")
    assert (model.forward(ids, head_factors=factors)["logits"] == plain).all()
    factors[0, 1] = 0
    off = model.forward(ids, head_factors=factors)["logits"]
    assert numpy.abs(off - plain).max() > 1e-3
    assert (model.forward(ids, head_factors={"self": factors})["logits"] == off).all()
    with pytest.raises(heed.Error, match="head_factors"):
        model.forward(ids, head_factors=factors[:, :1])
    with pytest.raises(heed.Error, match="self, decoder or cross"):
        model.forward(ids, head_factors={"selves": factors})


def test_the_logit_lens():
    model = heed.Model(TINY, seed=3)
    result = model.forward([[1, 2, 3, 4]], capture=("hidden",))
    assert numpy.abs(model.logits(result["hidden.2"]) - result["logits"]).max() < 1e-6
    # The last layer's output before the norm is not captured; but a model of one layer less says the same early.
    state = model.state_dict()
    shorter = heed.Model({**TINY, "decoder": {"layers": 1, "attention": {"heads": 2}}}, seed=3)
    shorter.load_state_dict({name: state[name] for name in shorter.state_dict()})
    early = model.early_logits(result["hidden.1"])
    assert numpy.abs(early - shorter.forward([[1, 2, 3, 4]])["logits"]).max() < 1e-5
    last = model.forward([[1, 2, 3, 4]], capture=("hidden",), hidden_last=2)
    assert (last["hidden.1"] == result["hidden.1"][:, 2:]).all()
    for wrong in (numpy.zeros((1, 2, 7), "float32"), numpy.zeros((2, 8), "float32"), numpy.zeros((1, 2, 8), "int64")):
        with pytest.raises(heed.Error, match="hidden"):
            model.early_logits(wrong)
    with pytest.raises(heed.Error, match="hidden_last"):
        model.forward([[1]], hidden_last=-1)
    with pytest.raises(heed.Error, match="attention_inputs"):
        model.forward([[1]], capture=("weights",))


def test_score_parts_are_checked():
    x = numpy.zeros((1, 1, 3, 4), "float32")
    for wrong in ({"row": 3, "column": 0}, {"row": 0, "column": 3}, {"row": 0, "column": 0, "head": 1}, {"row": 0, "column": 0, "batch": 1}, {"row": 0}, {"column": 0}, {"row": "a", "column": 0}):
        with pytest.raises(heed.Error, match="score_parts"):
            heed.score_parts(x, x, **wrong)
    with pytest.raises(TypeError):
        heed.score_parts(x, x, row=0, column=0, cause=True)
