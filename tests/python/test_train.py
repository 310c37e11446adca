"""Training steps through Python: the update is AdamW's, states go out and come back."""
import numpy
import pytest

import heed

TINY = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 2, "attention": {"heads": 2}}}
IDS = numpy.array([[1, 2, 3, 4, 5, 6], [7, 3, 9, 1, 0, 2]])


def test_a_step_is_adamw_on_the_gradients():
    model, rate, decay = heed.Model(TINY, seed=3), 0.01, 0.1
    before, given = model.state_dict(), model.gradients(IDS)
    report = heed.Learner(model, learning_rate=rate, warmup=0, schedule="constant", weight_decay=decay, clip=0).step(IDS)
    assert report["loss"] == pytest.approx(given["loss"].item(), rel=1e-6)
    total = sum(float((g.astype("f8") ** 2).sum()) for name, g in given.items() if name != "loss")
    assert report["gradient_norm"] == pytest.approx(total**0.5, rel=1e-5)
    for name, after in model.state_dict().items():
        gradient = given["grad." + name].astype("f8")
        # The first step: both moments, corrected for their start at zero, are the gradient and its square.
        shrunk = before[name] * (1 - rate * decay) if before[name].ndim > 1 and "embed" not in name else before[name]
        want = shrunk - rate * gradient / (numpy.abs(gradient) + 1e-9)
        numpy.testing.assert_allclose(after, want, atol=2e-6, err_msg=name)


def test_what_was_saved_goes_on_with_the_same_bits(tmp_path):
    options = {"learning_rate": 0.01, "warmup": 2, "steps": 10}
    first = heed.Model(TINY, seed=3)
    learner = heed.Learner(first, **options)
    for _ in range(3):
        learner.step(IDS)
    learner.save(tmp_path / "state.safetensors")
    later = [learner.step(IDS)["loss"] for _ in range(3)]
    again = heed.Learner(heed.Model(TINY, seed=8), **options)
    again.resume(tmp_path / "state.safetensors")
    assert again.steps == 3
    assert [again.step(IDS)["loss"] for _ in range(3)] == later


def test_documents_end_to_end_are_as_each_alone():
    alone, together = heed.Model(TINY, seed=3), heed.Model(TINY, seed=3)
    padded = heed.Learner(alone, learning_rate=0.01).step(IDS)
    labels = IDS.copy()
    labels[:, 0] = -100
    packed = heed.Learner(together, learning_rate=0.01).step(IDS.reshape(1, -1), labels.reshape(1, -1), cu_seqlens=[0, 6, 12])
    assert packed["loss"] == pytest.approx(padded["loss"], rel=1e-6)
    assert packed["gradient_norm"] == pytest.approx(padded["gradient_norm"], rel=1e-5)


def test_bf16_keeps_its_master_weights():
    model = heed.Model(TINY, seed=3)
    learner = heed.Learner(model, learning_rate=1e-5, warmup=0, schedule="constant", dtype="bf16")
    losses = [learner.step(IDS)["loss"] for _ in range(300)]
    assert losses[-1] < losses[0]  # steps far below bf16's rounding add up


def test_mistakes():
    model = heed.Model(TINY)
    with pytest.raises(ValueError, match="learning_rat.*unknown key"):
        heed.Learner(model, learning_rat=1)
    with pytest.raises(ValueError, match="learning_rate: expected more than 0"):
        heed.Learner(model, learning_rate=-1.0)
    learner = heed.Learner(model)
    with pytest.raises(ValueError, match="input_ids: expected 0 to 15, got 99"):
        learner.step([[1, 99]], [[1, 2]])
    with pytest.raises(ValueError, match="labels: expected shape"):
        learner.step([[1, 2, 3]], [[1, 2]])
    with pytest.raises(ValueError, match="cu_seqlens"):
        learner.step([[1, 2, 3]], cu_seqlens=[0, 2])
    assert learner.steps == 0
