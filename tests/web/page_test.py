"""The page in a real browser: what a person clicks, types and reads. Pictures go to HEED_PICTURES, where that is set."""
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import xml.etree.ElementTree

from browser import Browser, missing
from models import make_gpt2, make_llama
from support import HEED, Serve

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
        self.refusals = None
        self.addCleanup(self.check_complaints)

    def check_complaints(self):
        """The console has no errors, except that a refusal which a test provoked is there: the browser notes it as such,
        some time after the page has shown it."""
        lines = self.browser.complaints()
        end = time.time() + 30
        while self.refusals and not any(self.refusals in line for line in lines) and time.time() < end:
            time.sleep(0.05)
            lines += self.browser.complaints()
        expected = [line for line in lines if self.refusals and self.refusals in line and " 400 " in line]
        self.assertEqual([line for line in lines if line not in expected], [])
        self.assertEqual(bool(expected), bool(self.refusals))

    def show(self, view):
        self.browser.open("about:blank")
        self.browser.open(f"{self.server.address}/#/{view}")

    def picture(self, name, browser=None):
        if os.environ.get("HEED_PICTURES"):
            (browser or self.browser).picture(os.path.join(os.environ["HEED_PICTURES"], name + ".png"))

    def test_the_example_explains_every_step(self):
        self.show("learn/example?example=random&tokens=4&causal=true&alibi=true&softcap=5&dropout=0.3")
        self.browser.wait("document.querySelector('#step-output td')")
        steps = self.browser.script("return [...document.querySelectorAll('#steps .step')].map(s => s.id)")
        self.assertEqual(len(steps), 17)
        for step in steps:
            self.browser.script("document.querySelector(arguments[0]).scrollIntoView()", f"#{step}")
            self.browser.script("document.querySelector(arguments[0]).click()", f"#{step} td")
            text = self.browser.text(".explain")
            self.assertRegex(text, r"[0-9−]", step)
            self.assertNotIn("NaN", text, step)
            self.assertNotIn("undefined", text, step)
        self.picture("learn-example")

    def check_arithmetic(self, selector):
        """What a cell says adds up: the left of the last equals sign, computed, is its right, up to the digits shown."""
        lines = self.browser.script("""return [...document.querySelectorAll(arguments[0])].map((cell) => { cell.click(); return document.querySelector('.explain code').innerText; })""", selector)
        checked = 0
        for line in lines:
            left, _, right = line.rpartition(" = ")
            if not left:
                continue
            number = lambda text: text.replace("−", "-").replace("·", "*").replace("e^", "2.718281828459045**")
            left = re.sub(r"\([^()]*[A-Za-df-z\u4e00-\u9fff][^()]*\)", "", number(left.rpartition(" = ")[2]))  # remarks
            if re.search(r"[A-Za-df-z\[|]", left.replace("tanh", "")):
                continue
            got, want = eval(left, {"tanh": math.tanh}), float(number(right.split()[0]))
            self.assertLess(abs(got - want), 0.02 * abs(want) + 0.01, line)
            checked += 1
        self.assertGreater(checked, 0, selector)

    def test_what_cells_say_is_true(self):
        self.show("learn/example?example=random&tokens=4&causal=true&softcap=5&dropout=0.3")
        self.browser.wait("document.querySelector('#step-output td')")
        for step in ("queries", "scores", "scaled", "softcap", "weights", "dropout", "mixed", "output"):
            self.check_arithmetic(f"#step-{step} figure:last-child td:not(.hidden)")
        for decay, update in ((1, "linear"), (0.5, "delta")):
            self.show(f"learn/memories?decay={decay}&update={update}&step=5&infini_step=10&gate=0.5")
            self.browser.wait("document.querySelectorAll('#infini table').length === 4 && document.querySelectorAll('#linear table').length === 6")
            self.check_arithmetic("#linear figure:nth-of-type(n+4) td")
            self.check_arithmetic("#infini figure:last-of-type td")
        self.show("learn/memories?infini_step=12")
        self.browser.wait("document.querySelectorAll('#infini table').length === 4")
        self.check_arithmetic("#infini td")

    def test_the_numbers_behind_a_number_are_marked(self):
        self.show("learn/example?example=random&tokens=4&causal=true&heads=2&kv_heads=1")
        self.browser.wait("document.querySelector('#step-output td')")
        marked = lambda step: self.browser.script("return [...document.querySelectorAll(arguments[0] + ' td')].flatMap((c, n) => c.classList.contains('used') ? [n] : [])", "#step-" + step)
        self.browser.script("document.querySelectorAll('#step-scores figure')[1].querySelectorAll('td')[6].click()")  # head 2, query 2, key 3
        self.assertEqual(marked("query_heads"), [16 + 4 + n for n in range(4)])
        self.assertEqual(marked("key_heads"), [8 + n for n in range(4)])  # both heads read the same keys
        self.browser.script("document.querySelectorAll('#step-queries figure')[1].querySelectorAll('td')[8 + 5].click()")  # token 2, number 6
        self.assertEqual(marked("input"), list(range(8, 16)))
        self.assertEqual(marked("queries"), [8 * row + 5 for row in range(8)])  # a column of Wq
        self.assertEqual(marked("query_heads"), [])

    def test_a_scale_can_be_taken_back(self):
        self.show("learn/example?scale=2")
        self.browser.wait("document.querySelector('#step-scaled td')?.innerText === '4'")
        self.browser.script("const x = document.querySelector('input[placeholder]'); x.value = ''; x.dispatchEvent(new Event('change'))")
        self.browser.wait("document.querySelector('#step-scaled td')?.innerText === '1'")

    def test_sizes(self):
        self.show("learn/sizes?model=llama-3-8b&tokens=8192&texts=4")
        self.browser.wait("document.querySelector('#sizes').dataset.ready === 'llama-3-8b'")
        text = self.browser.text("#sizes")
        self.assertIn("8.03 billion", text)
        self.assertIn("4.0 GiB", text)
        self.picture("learn-sizes")

    def test_without_a_model_the_page_says_how_to_open_one(self):
        self.show("look/heads")
        self.browser.wait("document.querySelectorAll('pre.commands').length === 2")
        self.assertIn("heed serve", self.browser.text("main"))

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
            for chapter in ("example", "kinds", "positions", "patterns", "memories", "sizes"):
                self.show(f"learn/{chapter}")
                self.browser.choose("#language", language)
                self.browser.wait("document.querySelector('main').innerText.length > 200")
                self.assertNotRegex(self.browser.text("body"), r"\b(step|learn|area|group|part|means|value)_[a-z]+", f"{language} {chapter}")
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
        self.refusals = "/api/pattern"
        self.browser.type("#pattern-text", "caused")
        self.browser.press([ENTER])
        self.browser.wait("document.querySelector('#pattern .error')?.innerText.includes('caused')")
        self.picture("learn-patterns")
        self.show("learn/memories")
        self.browser.wait("document.querySelectorAll('#infini table').length === 4")
        self.picture("learn-memories")

    def test_a_link_brings_back_the_view(self):
        link = "learn/patterns?text=window(1%2C+1)&tokens=5&length=512&head=0"
        self.show(link)
        self.browser.wait("document.querySelector('#pattern h2')?.innerText === 'window(1, 1)'")
        self.assertIn("13 / 25", self.browser.text("#pattern"))
        self.browser.script("document.querySelector('#pattern canvas').dispatchEvent(new MouseEvent('mousemove', { clientX: 0, clientY: 0 }))")

    def test_narrow_and_dark(self):
        narrow = Browser(width=390, height=800, dark=True)
        try:
            for chapter in ("example", "kinds", "positions", "patterns", "memories", "sizes"):
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

    setUp, check_complaints, show, picture = Page.setUp, Page.check_complaints, Page.show, Page.picture

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
        self.browser.script("document.querySelector('#heads').scrollIntoView()")
        self.picture("look-heads")
        self.browser.script("document.querySelector('.thumb[data-name=\"self.2.1\"]').click()")
        self.browser.wait("document.querySelector('#head').dataset.ready?.startsWith('self.2.1.')")
        self.browser.script("const c = document.querySelector('#map'), b = c.getBoundingClientRect(), n = c.height; "
                            "c.dispatchEvent(new MouseEvent('click', {clientX: b.left + b.width * 1.5 / n, clientY: b.top + b.height * 4.5 / n}))")
        self.browser.wait("document.querySelector('#weight')")
        want = self.server.ask("/api/look/cell", {"prompt": prompt, "layer": 2, "head": 1, "row": 4, "column": 1})["weight"]
        self.assertEqual(float(self.browser.script("return document.querySelector('#weight').dataset.value")), want)
        self.assertAlmostEqual(float(self.browser.script("return document.querySelector('#weight').dataset.parts")), want, delta=1e-5)
        self.assertRegex(self.browser.text("#cell"), r"q · k .*= .*\n.*Scale .*\n.*Mask may be seen\n.*softmax e\^")
        self.assertEqual(self.browser.script("return document.querySelectorAll('#products rect').length"), 8)
        self.browser.script("document.querySelector('#head').scrollIntoView()")
        self.picture("look-head")
        link = self.browser.script("return location.hash")
        text = self.browser.text("#cell")
        self.show(link.removeprefix("#/"))
        self.browser.wait("document.querySelector('#weight')")
        self.assertEqual(self.browser.text("#cell"), text)

    def test_zoom_and_keyboard(self):
        self.show("look/heads?prompt=" + "the+river+and+" * 12 + "&kind=self&layer=0&head=0")
        self.browser.wait("document.querySelector('#head').dataset.ready?.startsWith('self.0.0.')")
        before = self.browser.script("return document.querySelector('#head').dataset.ready")
        self.browser.click("#zoom-in")
        self.browser.wait(f"document.querySelector('#head').dataset.ready !== '{before}'")
        self.browser.script("document.querySelector('#map').focus()")
        self.browser.press([DOWN, RIGHT])
        self.browser.wait("document.querySelector('#weight')")

    def test_a_head_switched_off_changes_what_comes_next(self):
        self.show("look/heads?prompt=The+river+and+the")
        self.browser.wait("document.querySelector('#heads').dataset.ready === '16'")
        before = self.browser.script("return [...document.querySelectorAll('#next li')].map(x => x.innerText)")
        self.browser.script("document.querySelector('[data-switch=\"self.1.2\"]').focus()")
        self.browser.press([ENTER])
        self.browser.wait("document.querySelectorAll('#next .next-list').length === 2")
        after = self.browser.script("return [...document.querySelectorAll('#next .next-list')].map(l => [...l.querySelectorAll('li')].map(x => x.innerText))")
        self.assertEqual(after[1], before)
        self.assertNotEqual(after[0], before)
        want = self.server.ask("/api/look", {"prompt": "The river and the", "off": [["self", 1, 2]]})["next"]
        self.assertIn(f"{100 * want[0]['p']:.1f} %", after[0][0])
        self.assertIn("off=self.1.2", self.browser.script("return location.hash"))
        self.browser.script("document.querySelector('#heads').scrollIntoView()")
        self.picture("look-off")
        self.browser.click("#all-on")
        self.browser.wait("document.querySelectorAll('#next .next-list').length === 1")

    def test_the_logit_lens(self):
        self.show("look/heads?prompt=The+river+and+the")
        self.browser.wait("document.querySelectorAll('#lens tr').length === 5")
        best = self.browser.script("return document.querySelector('#lens tr:last-child td').innerText")
        want = self.server.ask("/api/look", {"prompt": "The river and the"})["next"][0]
        self.assertIn(f"{100 * want['p']:.1f} %", best)
        self.browser.script("document.querySelector('#lens').scrollIntoView({block: 'center'})")
        self.picture("look-lens")

    def test_files_and_their_contents(self):
        """PNG and SVG are made in the page; what it hands to the downloads is caught here."""
        self.show("look/heads?prompt=The+river+and+the&kind=self&layer=1&head=0")
        self.browser.wait("document.querySelector('#head').dataset.ready")
        self.browser.script("window.saved = {}; HTMLAnchorElement.prototype.click = function () { window.saved[this.download] = this.href; }")
        self.browser.click("#save-png")
        self.browser.click("#save-svg")
        saved = self.browser.script("return window.saved")
        self.assertTrue(saved["heed-head.png"].startswith("data:image/png;base64,iVBOR"))
        picture = urllib.parse.unquote(saved["heed-head.svg"].split(",", 1)[1])
        tile = self.server.ask("/api/look/map", {"prompt": "The river and the", "layer": 1, "head": 0})["map"]
        shapes = xml.etree.ElementTree.fromstring(picture).findall("{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(shapes), sum(w > 0 for row in tile for w in row))

    def test_the_model_writes(self):
        self.show("look/heads?prompt=The+river&tokens=8")
        self.browser.wait("document.querySelector('#heads').dataset.ready === '16'")
        self.browser.click("#go-on")
        self.browser.wait("document.querySelector('#prompt').value.length > 'The river'.length && document.querySelector('#heads').dataset.ready === '16'")
        want = self.server.ask("/v1/completions", {"prompt": "The river", "max_tokens": 8, "temperature": 0})["choices"][0]["text"]
        self.assertEqual(self.browser.script("return document.querySelector('#prompt').value"), "The river" + want)

    def test_writing_can_be_stopped(self):
        """What has come stays. The stream halts after some tokens here, as a slow model's would."""
        self.show("look/heads?prompt=The+river&tokens=40")
        self.browser.wait("document.querySelector('#heads').dataset.ready === '16'")
        self.browser.script("""const real = window.fetch;
            window.fetch = (path, how) => (path !== "/v1/completions" ? real(path, how) : real(path, how).then(async (response) => {
              const events = (await response.text()).split("\\n\\n").slice(0, 5).join("\\n\\n") + "\\n\\n";
              return new Response(new ReadableStream({ start(to) {
                to.enqueue(new TextEncoder().encode(events));
                how.signal.addEventListener("abort", () => to.error(how.signal.reason));
              } }));
            }));""")
        self.browser.click("#go-on")
        self.browser.wait("document.querySelectorAll('#generated .token').length === 5")
        self.browser.click("#stop")
        self.browser.wait("document.querySelector('#heads').dataset.ready === '16'")
        want = self.server.ask("/v1/completions", {"prompt": "The river", "max_tokens": 5, "temperature": 0})["choices"][0]["text"]
        self.assertEqual(self.browser.script("return document.querySelector('#prompt').value"), "The river" + want)

    def test_the_chosen_weight_is_marked(self):
        self.show("look/heads?prompt=The+river+and+the&kind=self&layer=1&head=0&row=6&column=3")
        self.browser.wait("document.querySelector('#weight')")
        frame = self.browser.script("const m = document.querySelector('.map-mark').getBoundingClientRect(), c = document.querySelector('#map').getBoundingClientRect(), n = document.querySelector('#map').height; return [(m.left - c.left) * n / c.width, (m.top - c.top) * n / c.height]")
        self.assertAlmostEqual(frame[0], 3, delta=0.1)
        self.assertAlmostEqual(frame[1], 6, delta=0.1)
        self.assertEqual(self.browser.script("return document.querySelectorAll('.attended .token.here').length"), 1)

    def test_text_is_no_markup(self):
        self.show("look/heads?prompt=" + "%3Cimg+src%3Dx+onerror%3D%22document.title%3D1%22%3E" + "&kind=self&layer=0&head=0&row=1&column=0")
        self.browser.wait("document.querySelector('#weight')")
        self.assertEqual(self.browser.script("return document.querySelectorAll('main img').length"), 0)
        self.show("look/heads?prompt=" + urllib.parse.quote("<script>document.title = 1</script>") + "&kind=self&layer=0&head=0&row=1&column=0&tokens=4")
        self.browser.wait("document.querySelector('#weight')")
        self.browser.click("#go-on")
        self.browser.wait("document.querySelector('#prompt').value.length > 35 && document.querySelector('#heads').dataset.ready === '16'")
        self.assertEqual(self.browser.script("return [document.querySelectorAll('main script').length, document.title === '1']"), [0, False])

    def test_both_languages_narrow_and_dark(self):
        narrow = Browser(width=390, height=800, dark=True)
        try:
            for language in ("zh", "en"):
                narrow.open("about:blank")
                narrow.open(f"{self.server.address}/#/look/heads?prompt=The+river&kind=self&layer=0&head=0&row=1&column=0")
                narrow.wait("document.querySelector('#weight')")
                narrow.choose("#language", language)
                narrow.wait("document.querySelector('#weight')")
                self.assertNotRegex(narrow.text("body"), r"\b(look|area|order|kind|value|means|hidden)_[a-z]+", language)
                self.assertLessEqual(narrow.script("return document.documentElement.scrollWidth - innerWidth"), 0)
            narrow.script("document.querySelector('#head').scrollIntoView()")
            self.picture("narrow-look", narrow)
            self.assertEqual(narrow.complaints(), [])
        finally:
            narrow.close()


class LongText(unittest.TestCase):
    """Two models, and a text of which no matrix is ever made."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Serve(make_llama(os.path.join(cls.folder.name, "one")), make_llama(os.path.join(cls.folder.name, "two"), seed=4))
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    setUp, check_complaints, show, picture = Page.setUp, Page.check_complaints, Page.show, Page.picture

    def test_from_the_whole_to_a_weight(self):
        prompt = "+".join(str((n * n + n // 7) % 60) for n in range(4500))
        self.show(f"look/heads?prompt={prompt}&kind=self&layer=1&head=1")
        self.browser.wait("document.querySelector('#head').dataset.ready === 'self.1.1.64.0.0'")
        for step in (32, 16, 8, 4, 2, 1):
            self.browser.script("document.querySelector('#map').focus()")
            self.browser.press(["+"])
            self.browser.wait(f"document.querySelector('#head').dataset.ready.startsWith('self.1.1.{step}.')")
        self.assertIn("/ 4500", self.browser.text("#where"))
        self.browser.press([DOWN])
        self.browser.wait("document.querySelector('#weight')")
        link = self.browser.script("return location.hash")
        where, cell = self.browser.text("#where"), self.browser.text("#cell")
        self.show(link.removeprefix("#/"))
        self.browser.wait("document.querySelector('#weight')")
        self.assertEqual([self.browser.text("#where"), self.browser.text("#cell")], [where, cell])
        self.assertNotIn("null", cell)
        self.browser.script("document.querySelector('#head').scrollIntoView()")
        self.picture("look-long")

    def test_side_by_side(self):
        self.show("look/heads?prompt=1+2+3+4+1+2+3+4&kind=self&layer=0&head=1")
        self.browser.wait("document.querySelector('#head').dataset.ready && document.querySelector('#beside')")
        self.browser.click("#beside")
        self.browser.wait("document.querySelector('#head-beside').dataset.ready && document.querySelector('#map-beside')")
        self.assertEqual(self.browser.script("return document.querySelectorAll('.thumb').length"), 8)
        other = self.server.ask("/api/look", {"ids": [1, 2, 3, 4, 1, 2, 3, 4], "model": 1})["next"][0]
        self.assertIn(f"{100 * other['p']:.1f} %", self.browser.script("return document.querySelectorAll('#next .next-list')[1].innerText"))
        self.assertIn("beside=true", self.browser.script("return location.hash"))
        self.browser.script("document.querySelector('#head').scrollIntoView()")
        self.picture("look-beside")


@unittest.skipUnless(os.environ.get("HEED_PICTURES"), "HEED_PICTURES is not set: no pictures are made")
class Pictures(unittest.TestCase):
    """Those of the README and of docs/look-inside.md: models that `heed train` makes here in minutes, and what they do."""

    check_complaints, show, picture = Page.check_complaints, Page.show, Page.picture

    def open_model(self, task):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        run = os.path.join(folder.name, task)
        subprocess.run([HEED, "train", "--task", task, "--out", run, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        self.server = Serve(run)
        self.addCleanup(self.server.stop)
        self.browser = Browser(height=1180)
        self.addCleanup(self.browser.close)
        Page.setUp(self)

    def still(self, name):
        """A picture when everything is painted."""
        time.sleep(1)
        self.picture(name)

    def test_an_alignment(self):
        self.open_model("dates")
        prompt = "the first of may, nineteen oh seven"
        found = []  # the head whose rows look most sharply at letters, the end token aside
        for head in self.server.ask("/api/look", {"prompt": prompt})["heads"]:
            if head["kind"] == "cross":
                place = {name: head[name] for name in ("kind", "layer", "head")}
                rows = [row[:-1] for row in self.server.ask("/api/look/map", {"prompt": prompt, "step": 1, "cells": 64, **place})["map"]]
                at = max(range(len(rows)), key=lambda i: max(rows[i]))
                found.append((sum(map(max, rows)), {**place, "row": at, "column": rows[at].index(max(rows[at]))}))
        view = max(found, key=lambda one: one[0])[1]
        self.show(f"look/heads?prompt={urllib.parse.quote_plus(prompt)}&{urllib.parse.urlencode(view)}")
        self.browser.wait("document.querySelector('#weight')")
        self.browser.script("document.querySelector('#head').scrollIntoView()")
        self.still("look-alignment")

    def test_an_induction_head(self):
        self.open_model("induction")
        written = "k3q7z1f9|k3z1q7f"  # which digit stood behind f?
        prompt = urllib.parse.quote_plus(written)
        self.show(f"look/heads?prompt={prompt}&order=induction")
        self.browser.wait("document.querySelector('#heads').dataset.ready && document.querySelector('#lens')")
        self.still("look-heads")
        heads = sorted(self.server.ask("/api/look", {"prompt": written})["heads"], key=lambda head: -head["induction"])
        best = heads[0]
        self.show(f"look/heads?prompt={prompt}&order=induction&kind=self&layer={best['layer']}&head={best['head']}&row=16&column=8")
        self.browser.wait("document.querySelector('#weight') && document.querySelector('#lens')")
        self.still("page")
        off = ",".join(f"self.{head['layer']}.{head['head']}" for head in heads if head["induction"] > 0.3)
        self.show(f"look/heads?prompt={prompt}&order=induction&off={off}")
        self.browser.wait("document.querySelectorAll('#next .next-list').length === 2 && document.querySelector('#lens')")
        self.browser.script("document.querySelector('#heads').scrollIntoView()")
        self.still("look-off")


if __name__ == "__main__":
    if missing():
        print(f"skipped: no {missing()} here, so the page is not opened in a browser (tools/bootstrap web installs it)")
        sys.exit(77)
    unittest.main()
