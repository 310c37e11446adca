"""Models through Python: golden files, gradients, generation, saving."""
import json
import pathlib
import shutil

import numpy
import pytest

import heed

MODELS = pathlib.Path(__file__).parent.parent / "golden" / "data" / "models"
TINY = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 2, "attention": {"heads": 2}}}


def expected(name):
    file = heed.SafetensorsFile(MODELS / name / "expected.safetensors")
    return {key: file[key] for key in file}


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt-oss-sinks"])
def test_forward_is_that_of_transformers(name):
    want = expected(name)
    model = heed.load(MODELS / name)
    given = {key: want[key] for key in ("attention_mask", "position_ids", "decoder_input_ids") if key in want}
    got = model.forward(want["input_ids"], **given, capture=("hidden", "attention"))
    there = want["attention_mask"] == 1
    for key, value in got.items():
        mine, theirs = value, want[key]
        if "decoder_input_ids" not in want or key.startswith("encoder_"):
            row = there if mine.ndim == 3 else numpy.broadcast_to(there[:, None, :], mine.shape[:3])
            mine, theirs = mine[row], theirs[row]
        assert numpy.abs(mine - theirs).max() < 2e-4, key


@pytest.mark.parametrize("name", ["llama", "bart", "mixtral-experts"])
def test_gradients_are_those_of_transformers(name):
    want = expected(name)
    labels = want.get("decoder_input_ids", want["input_ids"])[:1]
    got = heed.load(MODELS / name).gradients(want["input_ids"][:1], labels)
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-4)
    for key in want:
        if key.startswith("grad."):
            assert numpy.abs(got[key] - want[key]).max() <= 1e-3 * numpy.abs(want[key]).max() + 1e-6, key


def test_generation_is_that_of_transformers():
    want = expected("llama")
    model = heed.load(MODELS / "llama")
    new = want["greedy"].shape[1] - want["input_ids"].shape[1]
    got = model.generate(want["input_ids"][:1], max_new_tokens=new, min_new_tokens=new)
    assert (got == want["greedy"]).all()
    want = expected("marian")
    row = want["input_ids"][:1], want["attention_mask"][:1]
    new = want["beam4"].shape[1] - 1
    got = heed.load(MODELS / "marian").generate(*row, max_new_tokens=new, min_new_tokens=new, num_beams=4,
                                                early_stopping=True)
    assert (got == want["beam4"]).all()


def test_several_texts_of_a_row():
    model = heed.load(MODELS / "llama")
    prompt = [[5, 7, 9], [3, 4, 6]]
    three = model.generate(prompt, max_new_tokens=6, min_new_tokens=6, num_beams=4, num_return_sequences=3)
    one = model.generate(prompt, max_new_tokens=6, min_new_tokens=6, num_beams=4)
    assert three.shape == (6, 9) and (three[::3] == one).all()
    assert len({tuple(row) for row in three[:3].tolist()}) == 3
    drawn = model.generate(prompt, max_new_tokens=6, do_sample=True, num_return_sequences=3, seed=2)
    assert len(drawn) == 6 and len({tuple(row) for row in drawn[:3].tolist()}) > 1
    for wrong in ({"num_return_sequences": 2}, {"num_return_sequences": 5, "num_beams": 4}):
        with pytest.raises(heed.Error, match="num_return_sequences"):
            model.generate(prompt, **wrong)


def test_what_a_call_says_of_its_tokens():
    model = heed.load(MODELS / "llama")
    prompt = [[5, 7, 9]]
    plain = model.generate(prompt, max_new_tokens=8, eos_token_id=[])[0, 3:].tolist()
    assert model.generate(prompt, max_length=11, eos_token_id=[])[0, 3:].tolist() == plain
    first = plain[0]
    for more in ({"suppress_tokens": [first]}, {"begin_suppress_tokens": [first]}, {"bad_words_ids": [[first]]}):
        assert model.generate(prompt, max_new_tokens=8, eos_token_id=[], **more)[0, 3] != first
    assert model.generate(prompt, max_new_tokens=8, eos_token_id=[first])[0, 3:].tolist() == [first]
    assert model.generate(prompt, max_new_tokens=8, eos_token_id=first, min_length=6).shape[1] > 5
    assert model.generate(prompt, max_new_tokens=8, eos_token_id=[], forced_eos_token_id=2)[0, -1] == 2
    made = model.generate(prompt, max_new_tokens=20, eos_token_id=[], no_repeat_ngram_size=1)[0].tolist()
    assert len(set(made)) == len(made)
    with pytest.raises(heed.Error, match="max_length.*more than the 3 tokens"):
        model.generate(prompt, max_length=3)
    with pytest.raises(TypeError, match="nobody"):
        model.generate(prompt, nobody=1)


def test_padding_in_front_counts_for_rules():
    model = heed.load(MODELS / "llama")
    first = int(model.generate([[5, 7, 9]], max_new_tokens=1, eos_token_id=[])[0, 3])
    for beams in (1, 3):
        made = model.generate([[first, 5, 7, 9]], attention_mask=[[0, 1, 1, 1]], max_new_tokens=1, eos_token_id=[],
                              no_repeat_ngram_size=1, num_beams=beams)
        assert made[0, 4] != first


def test_padding_tokens_are_hidden_without_a_mask():
    model = heed.load(MODELS / "llama")
    for beams in (1, 3):
        plain = model.generate([[5, 7, 9]], max_new_tokens=6, eos_token_id=[], num_beams=beams)[0, 3:].tolist()
        padded = [[11, 11, 5, 7, 9]]
        made = model.generate(padded, max_new_tokens=6, eos_token_id=[], pad_token_id=11, num_beams=beams)
        assert made[0, 5:].tolist() == plain
    shown = [model.generate(padded, max_new_tokens=6, eos_token_id=[], **more)[0, 5:].tolist() for more in (
        {"pad_token_id": 3}, {"pad_token_id": 11, "attention_mask": numpy.ones((1, 5), "int64")})]
    assert shown[0] == shown[1]


def test_a_target_may_begin_with_more_than_its_start_token():
    model = heed.load(MODELS / "bart")
    start = int(expected("bart")["beam4"][0, 0])
    plain = model.generate([[5, 6, 7]], max_new_tokens=6, min_new_tokens=6)[0].tolist()
    for begin in (plain[:3], plain[1:3]):  # the start token comes before what does not have it
        for beams in (1, 2):
            made = model.generate([[5, 6, 7]], decoder_input_ids=[begin], max_new_tokens=4, num_beams=beams)[0].tolist()
            assert made[:3] == [start, *plain[1:3]]
            assert beams > 1 or made[:4] == plain[:4]
    other = model.generate([[5, 6, 7]], max_new_tokens=4, decoder_start_token_id=9, forced_bos_token_id=8)[0].tolist()
    assert other[:2] == [9, 8]
    with pytest.raises(heed.Error, match="decoder"):
        heed.load(MODELS / "llama").generate([[5]], decoder_input_ids=[[1]])


def test_a_target_has_a_mask():
    model = heed.load(MODELS / "t5")
    ids, target = [[5, 6, 7]], [[0, 3, 4, 9]]
    short = model.forward(ids, decoder_input_ids=[[0, 3, 4]])["logits"]
    whole = model.forward(ids, decoder_input_ids=target, decoder_attention_mask=[[1, 1, 1, 0]])["logits"]
    assert numpy.abs(whole[:, :3] - short).max() < 1e-5
    hidden = model.forward(ids, decoder_input_ids=target, decoder_attention_mask=[[0, 1, 1, 1]])["logits"]
    assert numpy.abs(hidden[:, 1:3] - short[:, 1:3]).max() > 1e-3


def test_the_folder_says_how_to_generate(tmp_path):
    shutil.copytree(MODELS / "llama", tmp_path, dirs_exist_ok=True)
    prompt, settings = expected("llama")["input_ids"][:1], tmp_path / "generation_config.json"
    plain = heed.load(MODELS / "llama")
    settings.write_text(json.dumps({"num_beams": 3, "max_new_tokens": 5, "min_new_tokens": 5, "repetition_penalty": 1.4}))
    model = heed.load(tmp_path)
    asked = plain.generate(prompt, num_beams=3, max_new_tokens=5, min_new_tokens=5, repetition_penalty=1.4)
    assert (model.generate(prompt) == asked).all()
    one = plain.generate(prompt, max_new_tokens=7)
    assert (model.generate(prompt, num_beams=1, max_new_tokens=7, min_new_tokens=0, repetition_penalty=1.0) == one).all()
    settings.write_text(json.dumps({"max_length": prompt.shape[1] + 3, "no_repeat_ngram_size": 1, "eos_token_id": -1}))
    text = heed.load(tmp_path).generate(prompt)[0].tolist()
    assert len(text) == prompt.shape[1] + 3
    assert not set(text[-3:]) & set(prompt[0].tolist()) and len(set(text[-3:])) == 3
    ends = list(range(plain.forward(prompt)["logits"].shape[2]))  # whatever comes ends the text, unless it is too short
    settings.write_text(json.dumps({"min_length": prompt.shape[1] + 4, "eos_token_id": ends[1:]}))
    model = heed.load(tmp_path)
    assert model.generate(prompt, max_new_tokens=9)[0, prompt.shape[1]:].tolist()[:4] == [0] * 4
    assert model.generate(prompt, max_new_tokens=9, min_new_tokens=2)[0, prompt.shape[1]:].tolist()[:3] != [0] * 3
    settings.write_text(json.dumps({"guidance_scale": 1.5, "typical_p": 0.9}))
    with pytest.raises(heed.Error, match="generation_config.json.*guidance_scale 1.5"):
        heed.load(tmp_path).generate(prompt)
    heed.load(tmp_path).save(tmp_path / "again")
    assert (tmp_path / "again" / "generation_config.json").read_text() == settings.read_text()


def test_rows_of_a_batch_do_not_matter_to_one_another():
    model = heed.Model(TINY, seed=2)
    both = model.generate([[0, 3, 4, 5], [6, 7, 8, 9]], attention_mask=[[0, 1, 1, 1], [1, 1, 1, 1]], max_new_tokens=6)
    alone = model.generate([[3, 4, 5]], max_new_tokens=6)
    assert (both[0, 1:] == alone[0]).all()
    assert both.shape == (2, 10)


def test_a_model_is_saved_and_its_numbers_replaced(tmp_path):
    model = heed.Model(json.dumps(TINY), seed=3)
    model.save(tmp_path / "tiny")
    again = heed.load(tmp_path / "tiny")
    ids = [[1, 2, 3, 4]]
    assert (model.forward(ids)["logits"] == again.forward(ids)["logits"]).all()
    other = heed.Model(TINY, seed=4)
    assert (model.forward(ids)["logits"] != other.forward(ids)["logits"]).any()
    other.load_state_dict(model.state_dict())
    assert (model.forward(ids)["logits"] == other.forward(ids)["logits"]).all()
    assert json.loads(again.config)["d_model"] == 8
    assert again.parameters == sum(value.size for value in model.state_dict().values())


def test_mistakes_are_named():
    model = heed.Model(TINY)
    with pytest.raises(heed.Error, match=r"input_ids: expected 0 to 15, got 16"):
        model.forward([[16]])
    with pytest.raises(heed.Error, match=r"attention_mask: expected the shape of the ids, \[1, 2\], got \[1, 3\]"):
        model.forward([[1, 2]], attention_mask=[[1, 1, 1]])
    with pytest.raises(heed.Error, match="capture"):
        model.forward([[1]], capture=("everything",))
    with pytest.raises(heed.Error, match="early_stopping"):
        model.generate([[1]], early_stopping="maybe")
    with pytest.raises(heed.Error, match="expected shape|expected floats of shape"):
        model.load_state_dict({"embedding.weight": numpy.zeros(3, "float32")})
    with pytest.raises(heed.Error, match="line 1, \"decoder.heads\""):
        heed.Model({**TINY, "decoder": {"heads": 3}})


@pytest.mark.parametrize("form, most", [("f32", 1e-5), ("bf16", 0.05), ("int8", 0.05), ("int4", 0.6)])
def test_weights_in_other_forms(form, most):
    plain = heed.load(MODELS / "llama")
    small = heed.load(MODELS / "llama", weights=form)
    assert (plain.weights, small.weights) == ("stored", form)
    ids = [[5, 7, 9, 11, 2]]
    want, got = plain.forward(ids)["logits"], small.forward(ids)["logits"]
    assert numpy.linalg.norm(got - want) < most * numpy.linalg.norm(want)
    assert small.generate(ids, max_new_tokens=4).shape == (1, 9)
    with pytest.raises(ValueError, match="stored weights"):
        small.gradients(ids)
    with pytest.raises(ValueError, match="int8"):
        heed.load(MODELS / "llama", weights="int7")


def test_a_batch_of_texts():
    tokenizer = heed.train_byte_bpe(["low lower lowest"] * 9, vocabulary=262)
    texts = ["lower", b"\xff low", "", "slow " * 400]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    with pytest.raises(ValueError, match="str or bytes"):
        tokenizer.encode_batch([3])


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "gpt-oss-sinks", "mixtral-experts"])
def test_transformers_loads_what_is_saved(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    want = expected(name)
    model = heed.load(MODELS / name)
    model.save(tmp_path)
    architecture = json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    loaded, report = getattr(transformers, architecture).from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"] and not report["mismatched_keys"]
    given = {key: torch.tensor(want[key]) for key in ("input_ids", "attention_mask", "position_ids", "decoder_input_ids") if key in want}
    with torch.no_grad():
        logits = loaded.eval()(**given).logits.numpy()
    mine = model.forward(**{key: value.numpy() for key, value in given.items()})["logits"]
    rows = slice(None) if "decoder_input_ids" in want else want["attention_mask"] == 1
    assert numpy.abs(logits[rows] - mine[rows]).max() < 2e-4
