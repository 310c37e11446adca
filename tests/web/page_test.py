"""The page in a real browser: what a person clicks, types and reads. Pictures go to HEED_PICTURES, where that is set."""
import os
import sys
import tempfile
import unittest

from browser import Browser, missing
from models import make_gpt2
from support import Serve

DOWN, RIGHT, ENTER = "\ue015", "\ue014", "\ue007"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve()
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        assert cls.server.stop() == 0

    def setUp(self):
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints(), []))

    def show(self, view):
        self.browser.open("about:blank")
        self.browser.open(f"{self.server.address}/#/{view}")

    def picture(self, name, browser=None):
        if os.environ.get("HEED_PICTURES"):
            (browser or self.browser).picture(os.path.join(os.environ["HEED_PICTURES"], name + ".png"))

    def test_the_example_explains_every_step(self):
        self.show("learn/example?example=random&tokens=4&causal=true&alibi=true&softcap=5&dropout=0.3")
        self.browser.wait("document.querySelector('#step-output td')")
        steps = self.browser.script("return [...document.querySelectorAll('#steps section')].map(s => s.id)")
        self.assertEqual(len(steps), 17)
        for step in steps:
            self.browser.script("document.querySelector(arguments[0]).scrollIntoView()", f"#{step}")
            self.browser.script("document.querySelector(arguments[0]).click()", f"#{step} td")
            text = self.browser.text(".explain")
            self.assertRegex(text, r"[0-9−]", step)
            self.assertNotIn("NaN", text, step)
            self.assertNotIn("undefined", text, step)
        self.picture("learn-example")

    def test_a_weight_is_taken_apart(self):
        self.show("learn/example")
        self.browser.wait("document.querySelector('#step-weights td')")
        self.browser.script("document.querySelector('#step-weights td').click()")
        self.assertIn("e^1 / (e^1 + e^0) = 0.731", self.browser.text(".explain"))
        self.browser.click("#causal")
        self.browser.wait("document.querySelector('#step-weights td')?.innerText === '1'")
        self.assertIn("causal=true", self.browser.script("return location.hash"))

    def test_keyboard_alone(self):
        self.show("learn/example")
        self.browser.wait("document.querySelector('#step-scores td')")
        self.browser.script("document.querySelector('#step-scores td').focus()")
        self.browser.press([DOWN, RIGHT])
        self.assertIn("q2 · k2 =", self.browser.text(".explain"))

    def test_language(self):
        self.show("learn/example")
        self.browser.wait("document.querySelector('#step-weights td')")
        self.browser.choose("#language", "zh")
        self.browser.wait("document.querySelector('h1').innerText === '一步一步看注意力'")
        self.assertEqual(self.browser.script("return document.documentElement.lang"), "zh")
        self.browser.choose("#language", "en")
        self.browser.wait("document.querySelector('h1').innerText.startsWith('Attention')")

    def test_every_word_is_translated(self):
        """No key of the dictionary shows through, in either language, in any chapter."""
        for language in ("en", "zh"):
            for chapter in ("example", "kinds", "positions", "patterns", "memories"):
                self.show(f"learn/{chapter}")
                self.browser.choose("#language", language)
                self.browser.wait("document.querySelector('main').innerText.length > 200")
                self.assertNotRegex(self.browser.text("body"), r"\b(step|learn|area)_[a-z]+", f"{language} {chapter}")
        self.browser.choose("#language", "en")

    def test_kinds_positions_patterns_memories(self):
        self.show("learn/kinds?model=llama-3-8b&tokens=8192")
        self.browser.wait("document.querySelectorAll('#kinds .card').length === 4")
        self.assertIn("128 KiB", self.browser.text("#kinds"))
        self.picture("learn-kinds")
        self.show("learn/positions?scaling=yarn")
        self.browser.wait("document.querySelector('main').dataset.ready === 'positions'")
        self.assertEqual(self.browser.script("return document.querySelectorAll('#clocks svg').length"), 16)
        self.picture("learn-positions")
        self.show("learn/patterns")
        self.browser.wait("document.querySelector('#pattern canvas')")
        self.browser.type("#pattern-text", "caused")
        self.browser.press([ENTER])
        self.browser.wait("document.querySelector('#pattern .error')?.innerText.includes('caused')")
        self.picture("learn-patterns")
        # The refusal is an answer of the server, which the browser notes as such.
        self.assertTrue(all("400" in line for line in self.browser.complaints()))
        self.show("learn/memories")
        self.browser.wait("document.querySelectorAll('#infini table').length === 3")
        self.picture("learn-memories")

    def test_a_link_brings_back_the_view(self):
        link = "learn/patterns?text=window(1%2C+1)&tokens=5&length=512&head=0"
        self.show(link)
        self.browser.wait("document.querySelector('#pattern h2')?.innerText === 'window(1, 1)'")
        self.assertIn("13 / 25", self.browser.text("#pattern"))

    def test_narrow_and_dark(self):
        narrow = Browser(width=390, height=800, dark=True)
        try:
            for chapter in ("example", "kinds", "positions", "patterns", "memories"):
                narrow.open("about:blank")
                narrow.open(f"{self.server.address}/#/learn/{chapter}")
                narrow.wait("document.querySelector('main').innerText.length > 200")
                overflow = narrow.script("return document.documentElement.scrollWidth - innerWidth")
                self.assertLessEqual(overflow, 0, chapter)
                self.picture("narrow-" + chapter, narrow)
            self.assertEqual(narrow.complaints(), [])
        finally:
            narrow.close()


class Look(unittest.TestCase):
    """A model open behind the page."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Serve(make_gpt2(os.path.join(cls.folder.name, "tiny"), d=32, heads=4, layers=4))
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def setUp(self):
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints(), []))

    show, picture = Page.show, Page.picture

    def test_prompt_grid_head_cell(self):
        self.show("look/heads")
        self.browser.wait("document.querySelector('#prompt')")
        self.browser.type("#prompt", "The river and the river and the tree")
        self.browser.click("#look")
        self.browser.wait("document.querySelector('#heads').dataset.ready === '16'")
        self.assertIn("%", self.browser.text("#next"))
        for order in ("entropy", "distance", "first", "previous", "duplicate", "induction"):
            self.browser.choose("#order", order)
            names = self.browser.script("return [...document.querySelectorAll('.thumb')].map(x => x.dataset.name)")
            prompt = self.browser.script("return document.querySelector('#prompt').value")
            answer = {f"{h['kind']}.{h['layer']}.{h['head']}": h[order] for h in self.server.ask("/api/look", {"prompt": prompt})["heads"]}
            self.assertEqual([answer[name] for name in names], sorted(answer.values(), reverse=True), order)
        self.picture("look-heads")
        self.browser.script("document.querySelector('.thumb[data-name=\"self.2.1\"]').click()")
        self.browser.wait("document.querySelector('#head').dataset.ready?.startsWith('self.2.1.')")
        self.browser.script("const c = document.querySelector('#map'), b = c.getBoundingClientRect(), n = c.height; "
                            "c.dispatchEvent(new MouseEvent('click', {clientX: b.left + b.width * 1.5 / n, clientY: b.top + b.height * 4.5 / n}))")
        self.browser.wait("document.querySelector('#weight')")
        want = self.server.ask("/api/look/cell", {"prompt": prompt, "layer": 2, "head": 1, "row": 4, "column": 1})["weight"]
        self.assertEqual(float(self.browser.script("return document.querySelector('#weight').dataset.value")), want)
        self.picture("look-head")
        link = self.browser.script("return location.hash")
        text = self.browser.text("#cell")
        self.show(link.removeprefix("#/"))
        self.browser.wait("document.querySelector('#weight')")
        self.assertEqual(self.browser.text("#cell"), text)

    def test_zoom_and_keyboard(self):
        self.show("look/heads?prompt=" + "the+river+and+" * 12 + "&kind=self&layer=0&head=0")
        self.browser.wait("document.querySelector('#head').dataset.ready?.startsWith('self.0.0.')")
        before = self.browser.script("return document.querySelector('#map').width")
        self.browser.click("#zoom-in")
        self.browser.wait(f"document.querySelector('#map').width < {before}")
        self.browser.script("document.querySelector('#map').focus()")
        self.browser.press([DOWN, RIGHT])
        self.browser.wait("document.querySelector('#weight')")

    def test_the_model_writes(self):
        self.show("look/heads?prompt=The+river&tokens=8")
        self.browser.wait("document.querySelector('#heads').dataset.ready === '16'")
        self.browser.click("#go-on")
        self.browser.wait("document.querySelector('#prompt').value.length > 'The river'.length && document.querySelector('#heads').dataset.ready === '16'")
        want = self.server.ask("/v1/completions", {"prompt": "The river", "max_tokens": 8, "temperature": 0})["choices"][0]["text"]
        self.assertEqual(self.browser.script("return document.querySelector('#prompt').value"), "The river" + want)

    def test_text_is_no_markup(self):
        self.show("look/heads?prompt=" + "%3Cimg+src%3Dx+onerror%3D%22document.title%3D1%22%3E" + "&kind=self&layer=0&head=0&row=1&column=0")
        self.browser.wait("document.querySelector('#weight')")
        self.assertEqual(self.browser.script("return document.querySelectorAll('main img').length"), 0)

    def test_both_languages_narrow_and_dark(self):
        narrow = Browser(width=390, height=800, dark=True)
        try:
            for language in ("zh", "en"):
                narrow.open("about:blank")
                narrow.open(f"{self.server.address}/#/look/heads?prompt=The+river&kind=self&layer=0&head=0&row=1&column=0")
                narrow.wait("document.querySelector('#weight')")
                narrow.choose("#language", language)
                narrow.wait("document.querySelector('#weight')")
                self.assertNotRegex(narrow.text("body"), r"\b(look|area|order|kind)_[a-z]+", language)
                self.assertLessEqual(narrow.script("return document.documentElement.scrollWidth - innerWidth"), 0)
            self.picture("narrow-look", narrow)
            self.assertEqual(narrow.complaints(), [])
        finally:
            narrow.close()


if __name__ == "__main__":
    if missing():
        print(f"skipped: no {missing()} here, so the page is not opened in a browser (tools/bootstrap web installs it)")
        sys.exit(77)
    unittest.main()
