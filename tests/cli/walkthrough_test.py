import json
import math
import os
import pty
import re
import select
import subprocess
import unittest

from support import HEED, CliTest


def steps(report, run=0):
    return {step["name"]: step for step in report["runs"][run]["steps"]}


class Default(CliTest):
    def test_text(self):
        text = self.succeed("walkthrough")
        self.assertIn("x1  1.0000  0.0000  1.0000  0.0000\n", text)
        without, with_scale = text.index("== Without the scale =="), text.index("== With the scale ==")
        for begin, end, big, small in ((without, with_scale, "0.8808", "0.1192"),
                                       (with_scale, len(text), "0.7311", "0.2689")):
            part = text[begin:end]
            self.assertIn(f"    x1  {big}  {small}   |", part)
            self.assertIn(f"    x2  {small}  {big}   |", part)
            # Mixed values, and the result after the output projection.
            self.assertEqual(part.count(f"    x1  {big}  {small}  {big}  {small}\n"), 2)
            self.assertEqual(part.count(f"    x2  {small}  {big}  {small}  {big}\n"), 2)
        self.assertNotIn("\x1b", text)
        self.assertIn("Checked: ", text)

    def test_chinese(self):
        options = ["--tokens", "20", "--heads", "6", "--kv-heads", "3", "--batch", "2", "--causal", "--dropout", "0.3",
                   "--softcap", "4", "--alibi", "--window", "9,0"]
        for arguments in ([], options):
            english = self.succeed("walkthrough", *arguments)
            chinese = self.succeed("walkthrough", *arguments, "--lang", "zh")
            # The same numbers in the same order, and no English sentence left.
            number = r"-?\d+\.\d{4}"
            self.assertEqual(re.findall(number, chinese), re.findall(number, english))
            for line in chinese.splitlines():
                words = [w for w in re.findall(r"[A-Za-z]{3,}", line) if w not in ("inf", "exp", "sum", "tanh", "where",
                         "hidden", "bias", "slope", "keep", "softmax", "dropout", "sqrt", "head", "ALiBi", "heed",
                         "attend", "attention", "weights")]
                self.assertEqual(words, [], line)
            self.assertIn("查询", chinese)
        titles = [step["title"] for step in json.loads(self.succeed("walkthrough", "--lang", "zh", "--json"))["runs"][0]["steps"]]
        self.assertTrue(all(re.search("[\u4e00-\u9fff]", title) for title in titles), titles)
        self.refuse("walkthrough", "--lang", "fr", saying="--lang: expected en or zh, got 'fr'")

    def test_json(self):
        report = json.loads(self.succeed("walkthrough", "--json"))
        for n, scale in enumerate((1, 0.5)):
            self.assertEqual(report["runs"][n]["scale"], scale)
            big = 1 / (1 + math.exp(-2 * scale))
            found = steps(report, n)["output"]["values"]
            for row, expected in zip(found, ([big, 1 - big] * 2, [1 - big, big] * 2), strict=True):
                for a, b in zip(row, expected, strict=True):
                    self.assertAlmostEqual(a, b, places=15)
            self.assertLess(report["runs"][n]["largest_difference"], 1e-15)

    def test_one_scale(self):
        text = self.succeed("walkthrough", "--scale", "1")
        self.assertIn("0.8808", text)
        self.assertNotIn("0.7311", text)
        self.assertNotIn("==", text)

    def test_mask_and_dropout_are_in_the_picture(self):
        text = self.succeed("walkthrough", "--causal", "--scale", "1")
        self.assertIn("    x1  2.0000    -inf\n", text)
        self.assertIn("    x1  1.0000       .   |@ |\n", text)
        self.assertIn("    .  hidden\n", text)
        text = self.succeed("walkthrough", "--tokens", "4", "--heads", "1", "--dropout", "0.5", "--seed", "3")
        report = json.loads(self.succeed("walkthrough", "--tokens", "4", "--heads", "1", "--dropout", "0.5", "--seed",
                                         "3", "--json"))
        struck = sum(w == 0 for row in steps(report)["dropout"]["values"][0] for w in row)
        self.assertGreater(struck, 0)
        part = text[text.index("Dropout:"):text.index("Each token collects")]
        self.assertEqual(len(re.findall(r"  x(?=  | *\|)", re.sub(r"\n    x  dropped", "", part))), struck)
        self.assertIn("    x  dropped\n", part)

    def test_numbers_are_aligned(self):
        text = self.succeed("walkthrough", "--tokens", "5", "--heads", "2", "--window", "1,1", "--softcap", "3", "--alibi")
        block = []
        for line in text.splitlines() + [""]:
            row = re.fullmatch(r"    x\d((  +(-?\d+\.\d{4}|-inf|\.))+)(   \|.*\|)?", line)
            if row:
                block.append([match.end() for match in re.finditer(r"\S+", row.group(1))])
            elif block:
                self.assertEqual(len(set(map(tuple, block))), 1, text)
                block = []


class Random(CliTest):
    def test_shapes_at_every_step(self):
        text = self.succeed("walkthrough", "--batch", "32", "--tokens", "20", "--d-model", "512", "--heads", "8")
        for line in ("[32,20,512] x [512,512] -> [32,20,512]", "[32,20,512] -> [32,8,20,64]",
                     "[32,8,20,64] x [32,8,20,64] -> [32,8,20,20]", "[32,8,20,20] x [32,8,20,64] -> [32,8,20,64]",
                     "[32,8,20,64] -> [32,20,512]",
                     "Shapes: [32,20,512] -> [32,8,20,64] -> [32,8,20,20] -> [32,8,20,64] -> [32,20,512]\n"):
            self.assertIn(line, text)
        self.assertEqual(len(re.findall(r"^    \|.{40}\|$", text, re.M)), 20)  # the heat map
        self.assertLessEqual(max(map(len, text.splitlines())), 120)

    def test_numbers_follow_from_each_other(self):
        flags = ["--batch", "2", "--tokens", "4", "--d-model", "8", "--heads", "4", "--kv-heads", "2", "--entry", "1",
                 "--causal", "--dropout", "0.4", "--seed", "11"]
        report = json.loads(self.succeed("walkthrough", *flags, "--json"))
        s = {name: step["values"] for name, step in steps(report).items()}
        shapes = {name: step["shape"] for name, step in steps(report).items()}
        self.assertEqual(shapes["keys"], [2, 4, 4])
        self.assertEqual(shapes["key_heads"], [2, 2, 4, 2])
        for h in range(4):
            for i in range(4):
                self.assertEqual(s["query_heads"][h][i], s["queries"][i][2 * h:2 * h + 2])
                self.assertEqual(s["joined"][i][2 * h:2 * h + 2], s["mixed"][h][i])
                scores = [sum(a * b for a, b in zip(s["query_heads"][h][i], s["key_heads"][h // 2][j])) for j in range(4)]
                powers = [math.exp(x / math.sqrt(2)) if j <= i else 0 for j, x in enumerate(scores)]
                for j in range(4):
                    self.assertAlmostEqual(s["scores"][h][i][j], scores[j], places=13)
                    self.assertEqual(s["mask"][h][i][j] is None, j > i)
                    self.assertAlmostEqual(s["weights"][h][i][j], powers[j] / sum(powers), places=13)
                    self.assertIn(round(s["dropout"][h][i][j] - s["weights"][h][i][j] / 0.6, 12),
                                  (0, round(-s["weights"][h][i][j] / 0.6, 12)))
                for e in range(2):
                    mixed = sum(s["dropout"][h][i][j] * s["value_heads"][h // 2][j][e] for j in range(4))
                    self.assertAlmostEqual(s["mixed"][h][i][e], mixed, places=13)
        self.assertLess(report["runs"][0]["largest_difference"], 1e-13)

    def test_seed(self):
        same = [self.succeed("walkthrough", "--tokens", "3", "--seed", seed) for seed in ("1", "1", "2")]
        self.assertEqual(same[0], same[1])
        self.assertNotEqual(same[0], same[2])

    def test_one_head(self):
        text = self.succeed("walkthrough", "--heads", "3", "--head", "2")
        self.assertIn("    head 2\n", text)
        self.assertNotIn("    head 0\n", text)

    def test_refusals(self):
        self.refuse("walkthrough", "--tokens", "0", saying="--tokens: expected a whole number from 1")
        self.refuse("walkthrough", "--heads", "3", "--d-model", "8", saying="expected a divisor of d_model 8, got 3")
        self.refuse("walkthrough", "--heads", "4", "--kv-heads", "3", saying="kv_heads")
        self.refuse("walkthrough", "--tokens", "1000000", saying="small example")
        self.refuse("walkthrough", "--d-model", "1000000", saying="d_model")
        self.refuse("walkthrough", "--batch", "2", "--entry", "2", saying="--entry")
        self.refuse("walkthrough", "--head", "1", saying="--head")
        self.refuse("walkthrough", "--color", "blue", saying="expected auto, always or never")


class Colour(CliTest):
    def on_a_terminal(self, *arguments, **environment):
        try:
            leader, follower = pty.openpty()
        except OSError as error:  # a bare container may have none to give
            self.skipTest(f"no pseudo-terminal: {error}")
        process = subprocess.Popen([HEED, "walkthrough", *arguments], stdout=follower, stdin=subprocess.DEVNULL,
                                   env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", **environment})
        # Our copy of the other end stays open until the program has ended: some kernels drop what has not yet been
        # read when the last writer closes.
        text = b""
        while True:
            ended = process.poll() is not None
            if select.select([leader], [], [], 0 if ended else 0.05)[0]:
                text += os.read(leader, 65536)
            elif ended:
                break
        os.close(follower)
        os.close(leader)
        self.assertEqual(process.returncode, 0)
        return text.decode()

    def test_terminal_or_not(self):
        self.assertIn("\x1b[48;5;", self.on_a_terminal())
        self.assertNotIn("\x1b", self.on_a_terminal("--color", "never"))
        self.assertNotIn("\x1b", self.on_a_terminal(NO_COLOR="1"))
        self.assertNotIn("\x1b", self.on_a_terminal(TERM="dumb"))
        self.assertIn("\x1b[48;5;", self.on_a_terminal(NO_COLOR=""))
        self.assertIn("\x1b[48;5;", self.succeed("walkthrough", "--color", "always"))
        self.assertNotIn("\x1b", self.succeed("walkthrough"))

    def test_colour_changes_no_number(self):
        for flags in ([], ["--causal", "--tokens", "6"]):
            plain = re.sub(r"   \|.*\|$", "", self.succeed("walkthrough", *flags), flags=re.M)
            coloured = re.sub(r"\x1b\[[0-9;]*m", "", self.succeed("walkthrough", *flags, "--color", "always"))
            self.assertEqual(plain, coloured)

    def test_every_colour_is_ended(self):
        text = self.succeed("walkthrough", "--tokens", "60", "--causal", "--color", "always")
        for line in text.splitlines():
            codes = re.findall(r"\x1b\[[0-9;]*m", line)
            self.assertEqual([c == "\x1b[0m" for c in codes], [False, True] * (len(codes) // 2))


class File(CliTest):
    def example(self, content):
        path = self.folder / "example.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def test_all_keys(self):
        path = self.example({
            "title": "the cat", "tokens": ["the", "cat", "sat"], "x": [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]],
            "wq": [[1, 0], [0, 1], [0.5, 0], [0, -0.5]], "wk": [[1, 0], [0, 1], [0.5, 0], [0, 0.5]],
            "wv": [[1, 0], [0, 1], [1, 0], [0, 1]], "wo": [[1, 2], [3, 4]], "heads": 2, "kv_heads": 2, "scale": 0.5,
            "mask": [[1, 0, 1], [1, 1, 1], [True, False, True]], "bias": [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
            "softcap": 10, "causal": False, "seed": 1, "dropout": 0})
        text = self.succeed("walkthrough", "--file", path)
        self.assertIn("the cat", text)
        self.assertRegex(text, r"\n +the +cat +sat\n")
        s = {n: step["values"] for n, step in steps(json.loads(self.succeed("walkthrough", "--file", path, "--json"))).items()}
        self.assertEqual(s["queries"], [[1.5, 0], [0, 1], [1.5, 0.5]])
        self.assertEqual(s["scores"][0], [[2.25, 0, 2.25], [0, 0, 0], [2.25, 0, 2.25]])
        capped = 10 * math.tanh(2.25 * 0.5 / 10)
        self.assertEqual(s["mask"][0][0][1], None)
        self.assertAlmostEqual(s["mask"][0][0][2], capped + 1, places=14)
        self.assertAlmostEqual(s["weights"][0][0][2], 1 / (1 + math.exp(-1)), places=14)
        y, o = s["output"], s["joined"]
        self.assertAlmostEqual(y[2][1], 2 * o[2][0] + 4 * o[2][1], places=14)

    def test_flags_win_and_batches(self):
        path = self.example({"x": [[[1, 2]], [[3, 4]]], "causal": True})
        report = json.loads(self.succeed("walkthrough", "--file", path, "--entry", "1", "--no-causal", "--json"))
        self.assertEqual(steps(report)["output"]["values"], [[3, 4]])
        self.assertEqual(report["options"]["causal"], False)

    def test_control_characters_do_not_reach_the_terminal(self):
        path = self.example({"title": "\x1b]0;owned\x07", "tokens": ["\x1b[2J", "\u202eab\u0085", "a" * 50],
                             "x": [[1], [2], [3]]})
        text = self.succeed("walkthrough", "--file", path)
        self.assertTrue(all(c == "\n" or c.isprintable() for c in text), text)
        self.assertIn("\\x1b]0;owned\\x07", text)
        self.assertIn("aaaaaaaaaaa~", text)

    def test_refusals(self):
        def no(content, saying):
            self.refuse("walkthrough", "--file", self.example(content), saying=saying)
        no("", "parse error")
        no("{\"x\": [[1,2]", "parse error")
        no("[" * 200000, "parse error")
        no("{\"x\": " + "[" * 200000 + "1" + "]" * 200000 + "}", "x[0][0][0]: expected a number")
        no("\xff\x00", "parse error")
        no([], "expected a JSON object")
        no({}, "expected a key x")
        no({"x": 1}, "x: expected numbers in 2 levels of brackets, got 1")
        no({"x": []}, "x: expected numbers in 2 levels of brackets, got an array of 0")
        no({"x": [[1, 2], [1]]}, "x[1]: expected 2 entries as in the first, got an array of 1")
        no({"x": [[1, "a\x1b"]]}, "x[0][1]: expected a number, got")
        no("{\"x\": [[1e999]]}", "")
        no({"x": [[1]], "hats": 2}, "unknown key 'hats'")
        no({"x": [[1]], "heads": 0}, "heads: expected a whole number from 1 to 65536, got 0")
        no({"x": [[1]], "heads": 2}, "wq: expected columns that divide into 2 heads, got the identity of 1")
        no({"x": [[1, 2]], "wq": [[1, 2]]}, "wq: expected floats [2, ...], got f64 [1, 2]")
        no({"x": [[1, 2]], "wq": [[1], [1]]}, "wk: expected [2, 1], got [2, 2]")
        no({"x": [[1], [2]], "mask": [[1]]}, "mask: expected 2 x 2 numbers for 2 tokens, got 1 x 1")
        no({"x": [[1]], "mask": "random"}, "mask: expected a 1 x 1 array, got \"random\"")
        no({"x": [[1]], "tokens": ["a", "b"]}, "tokens: expected 1 strings")
        no({"x": [[1]], "causal": "yes"}, "causal: expected true or false")
        no({"x": [[1]], "dropout": 2}, "dropout: expected 0 <= p < 1, got 2")
        self.refuse("walkthrough", "--file", self.folder / "none.json", saying="cannot be opened")
        self.refuse("walkthrough", "--file", self.folder, saying="got a folder")
        self.refuse("walkthrough", "--file", self.example({"x": [[1]]}), "--tokens", "3", saying="--file")


if __name__ == "__main__":
    unittest.main()
