"""What a notebook shows: well-formed, complete, and with the right numbers in it."""

import re
import xml.etree.ElementTree

import numpy as np

import heed


def parse(text):
    return xml.etree.ElementTree.fromstring(text.replace("&nbsp;", " "))


def test_walkthrough_shows_its_steps():
    walk = heed.walkthrough(causal=True)
    page = parse(walk._repr_html_())
    cells = [cell.text for cell in page.iter("td")]
    assert "0.2689" in cells and "0.7311" in cells and "-\u221e" in cells
    titles = [bold.text for bold in page.iter("b")]
    assert (
        len(titles) == len(walk) == len(list(walk))
        and walk["weights"].title in titles[[s.name for s in walk].index("weights")]
    )
    assert "0.2689" in str(walk) and "softmax" in str(walk).lower()
    assert walk.largest_difference < 1e-12 and walk.visible.tolist() == [[[1, 0], [1, 1]]]


def test_walkthrough_takes_any_example(rng=np.random.default_rng(1)):
    x = rng.standard_normal((2, 20, 6)).astype("float32")
    walk = heed.walkthrough(x, heads=2, batch_entry=1, dropout=0.2, seed=4)
    out = walk["output"].values
    heads = x[1].reshape(1, 20, 2, 3).transpose(0, 2, 1, 3).astype("float64")
    expected = heed.attend(heads, heads, heads)
    assert np.allclose(walk["weights"].values, heed.attention_weights(heads, heads)[0])
    assert out.shape == (20, 6) and expected.shape == (1, 2, 20, 3) and walk.kept.shape == (2, 20, 20)
    page = parse(walk._repr_html_())
    assert len(list(page.iter("{http://www.w3.org/2000/svg}svg"))) >= 2  # 20 x 20 weights are a picture, not a table


def test_map_draws_every_weight(rng=np.random.default_rng(2)):
    q = rng.standard_normal((1, 2, 30, 8)).astype("float32")
    cells = heed.attention_map(q, q, size=(5, 6), causal=True)
    for head in range(2):
        picture = parse(cells.svg(0, head))
        squares = [r for r in picture.iter("{http://www.w3.org/2000/svg}rect") if r.get("width") == "1"]
        assert len(squares) == int((cells.values[0, head] > 0).sum())
        darkest = min(squares, key=lambda r: int(r.get("fill")[1:3], 16))
        top = np.unravel_index(cells.values[0, head].argmax(), (5, 6))
        assert (int(darkest.get("y")), int(darkest.get("x"))) == top
    page = cells._repr_html_()
    assert page.count("<svg") == 4 and "mean of 30 x 30 weights in 5 x 6 cells" in repr(cells)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)  # nothing is loaded from anywhere


def test_unknown_step():
    try:
        heed.walkthrough()["nothing"]
    except KeyError as error:
        assert "weights" in str(error)
    else:
        raise AssertionError("no KeyError")
