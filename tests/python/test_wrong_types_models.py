"""The same as test_wrong_types.py for layers, models, tokenizers and generation; and that nothing public is left out."""

import inspect
import json
import pathlib

import numpy as np
import pytest
from test_wrong_types import calls, check_right, surprises_of, x

import heed

TINY = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
IDS = np.arange(3, dtype="int64")[None]
TOKENIZER = heed.train_byte_bpe(["aa ab abc"], vocabulary=260).to_json()


def model():
    return heed.Model(TINY, seed=1)


def tokenizer():
    return heed.Tokenizer.from_json(TOKENIZER)


def saved_learner(folder):
    heed.Learner(model()).save(folder / "steps.safetensors")
    return folder / "steps.safetensors"


def with_template(folder):
    (folder / "chat_template.jinja").write_text("{{ messages | length }}", encoding="utf-8")
    return folder


def model_calls(folder):
    (folder / "tokenizer.json").write_text(TOKENIZER)
    model().save(folder / "saved")
    ids = {"position_ids": None, "token_type_ids": None, "decoder_input_ids": None, "kernel": "", "context": None}
    mask = {"attention_mask": np.ones((1, 3), "int64")}
    norm = {"weight": x(4), "eps": 1e-5, "weight_offset": 0.0}
    targets = np.array([0, 1])
    losses = {"label_smoothing": 0.1, "gradient": True, "ignore": -100, "context": None}
    quantized = lambda: heed.QuantizedMatrix(x(4, 32), "int8")  # noqa: E731
    return {
        "linear": (lambda: (x(2, 3), x(4, 3)), {"bias": x(4), "activation": "relu", "out": None, "context": None}),
        "linear_backward": (lambda: (x(2, 3), x(4, 3), x(2, 4)), {"context": None}),
        "layer_norm": (lambda: (x(2, 4),), {**norm, "bias": x(4)}),
        "rms_norm": (lambda: (x(2, 4),), norm),
        "layer_norm_backward": (lambda: (x(2, 4), x(2, 4)), norm),
        "rms_norm_backward": (lambda: (x(2, 4), x(2, 4)), norm),
        "activate": (lambda: (x(2, 4), "silu"), {"up": x(2, 4), "out": None}),
        "activate_backward": (lambda: (x(2, 4), "silu", x(2, 4)), {"up": x(2, 4)}),
        "embedding": (lambda: (targets, x(5, 4)), {"scale": 1.0, "out": None}),
        "dropout": (lambda: (x(2, 4), 0.5), {"seed": 1, "offset": 0, "residual": x(2, 4)}),
        "cross_entropy": (lambda: (x(2, 4), targets), losses),
        "linear_cross_entropy": (lambda: (x(2, 3), x(4, 3), targets), losses),
        "QuantizedMatrix": (lambda: (x(4, 32), "int4"), {}),
        "QuantizedMatrix.dequantize": (lambda: (quantized(),), {}),
        "Model": (lambda: (json.dumps(TINY), 1, "f32"), {}),
        "Model.forward": (lambda: (model(), IDS), {**mask, **ids, "capture": ("hidden",), "head_factors": x(1, 2), "hidden_last": 0}),
        "Model.logits": (lambda: (model(), x(1, 2, 8)), {"context": None}),
        "Model.early_logits": (lambda: (model(), x(1, 2, 8)), {"context": None}),
        "Model.gradients": (lambda: (model(), IDS, IDS), {**mask, **ids, "recompute": False}),
        "Model.to": (lambda: (model(), "cpu"), {}),
        "Model.state_dict": (lambda: (model(),), {}),
        "Model.load_state_dict": (lambda: (model(), model().state_dict()), {}),
        "Model.save": (lambda: (model(), folder / "again"), {}),
        "Model.generate": (
            lambda: (model(), IDS),
            {
                **mask,
                "max_new_tokens": 2,
                "min_new_tokens": 0,
                "do_sample": True,
                "temperature": 1.0,
                "top_k": 3,
                "top_p": 0.9,
                "min_p": 0.0,
                "repetition_penalty": 1.1,
                "seed": 3,
                "num_beams": 1,
                "length_penalty": 1.0,
                "early_stopping": False,
                "eos_token_id": [7],
                "stop_strings": None,
                "prompt_lookup_num_tokens": 0,
                "assistant_model": None,
                "context": None,
                "max_length": 9,
                "min_length": 0,
                "num_return_sequences": 1,
                "no_repeat_ngram_size": 0,
                "bad_words_ids": [[3]],
                "suppress_tokens": [4],
                "begin_suppress_tokens": [4],
                "pad_token_id": 0,
                "forced_eos_token_id": 5,
            },
        ),
        "Model.embed": (lambda: (model(), IDS), {**mask, "pooling": "mean", "normalize": True, "context": None}),
        "Model.score": (lambda: (model(), [1, 2, 3]), {"window": 2, "stride": 1, "context": None}),
        "Learner": (lambda: (model(), None), {"learning_rate": 0.01, "warmup": 0, "schedule": "constant"}),
        "Learner.step": (
            lambda: (heed.Learner(model()), IDS),
            {"labels": IDS, "attention_mask": np.ones((1, 3), bool), "cu_seqlens": None},
        ),
        "Learner.save": (lambda: (heed.Learner(model()), folder / "learner.safetensors"), {}),
        "Learner.resume": (lambda: (heed.Learner(model()), saved_learner(folder)), {}),
        "load": (lambda: (folder / "saved",), {"copy": False}),
        "model_families": (lambda: (), {}),
        "devices": (lambda: (), {}),
        "explain_calls": (lambda: (lambda: heed.linear(x(2, 3), x(4, 3)),), {"context": None}),
        "bleu": (lambda: (["a b"], ["a b"]), {}),
        "ChatTemplate": (lambda: (with_template(folder),), {}),
        "ChatTemplate.from_text": (lambda: ("{{ messages | length }}",), {"bos_token": "<s>", "eos_token": "</s>"}),
        "ChatTemplate.render": (
            lambda: (heed.ChatTemplate.from_text("{{ messages | length }}"), [{"role": "user", "content": "a"}]),
            {"add_generation_prompt": True, "tools": [{"name": "f"}]},
        ),
        "Tokenizer": (lambda: (folder / "tokenizer.json",), {}),
        "Tokenizer.from_json": (lambda: (TOKENIZER,), {}),
        "Tokenizer.encode": (
            lambda: (tokenizer(), "aa"),
            {"text_pair": None, "add_special_tokens": True, "allow_special": True},
        ),
        "Tokenizer.encode_batch": (
            lambda: (tokenizer(), ["aa", b"ab"]),
            {"add_special_tokens": True, "allow_special": True, "context": None},
        ),
        "Tokenizer.decode": (lambda: (tokenizer(), [1, 2]), {"skip_special_tokens": True}),
        "Tokenizer.decode_bytes": (lambda: (tokenizer(), [1, 2]), {"skip_special_tokens": True}),
        "Tokenizer.token_to_id": (lambda: (tokenizer(), "a"), {}),
        "Tokenizer.id_to_token": (lambda: (tokenizer(), 1), {}),
        "Tokenizer.to_json": (lambda: (tokenizer(),), {}),
        "train_byte_bpe": (
            lambda: (["aa ab"], 260),
            {"min_count": 1, "special_tokens": ["<a>"], "pattern": ""},
        ),
    }


def test_every_call_is_right(tmp_path):
    check_right(model_calls(tmp_path))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning", "ignore:nanobind:RuntimeWarning")
def test_wrong_types(tmp_path, monkeypatch):
    table = model_calls(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert surprises_of(table) == []


def takes_arguments(function):
    """By the first line of its docstring, which has the signature."""
    first = (function.__doc__ or "").partition("\n")[0]
    return first.startswith(f"{function.__name__}(") and not first.startswith((f"{function.__name__}()", f"{function.__name__}(self)"))


def public_names():
    """Functions and classes, and the methods of classes that take something."""
    for name, value in vars(heed._core).items():
        if name.startswith("_") or not callable(value) or value.__module__ != "heed._core":
            continue
        if inspect.isclass(value) and issubclass(value, (BaseException, tuple)):
            continue
        yield name
        if inspect.isclass(value):
            for member, function in vars(value).items():
                if not member.startswith("_") and callable(function) and takes_arguments(getattr(value, member)):
                    yield f"{name}.{member}"


def test_nothing_public_is_left_out(tmp_path):
    known = {*calls(str(tmp_path)), *model_calls(tmp_path)}
    made_elsewhere = {"Cache", "Explanation", "KernelVerdict"}
    assert sorted(set(public_names()) - known - made_elsewhere) == []
