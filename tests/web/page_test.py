"""The page in a real browser: what a person clicks, types and reads. Pictures go to HEED_PICTURES, where that is set."""
import os
import sys
import unittest

from browser import Browser, missing
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


if __name__ == "__main__":
    if missing():
        print(f"skipped: no {missing()} here, so the page is not opened in a browser (tools/bootstrap web installs it)")
        sys.exit(77)
    unittest.main()
