import json
import unittest
import xml.etree.ElementTree

from support import CliTest


def brute_force(sees, queries, keys, block):
    """Blocks in which any pair is seen, and pairs seen."""
    shift = keys - queries
    pairs = {(i, j) for i in range(queries) for j in range(keys) if sees(i + shift, j)}
    return {(i // block, j // block) for i, j in pairs}, len(pairs)


class Patterns(CliTest):
    def report(self, *arguments):
        return json.loads(self.succeed("patterns", *arguments, "--json"))

    def test_counts_are_those_of_the_definition(self):
        cases = [
            (["--causal", "--window", "20,0", "--global", "0,1"], "causal & (window(20, 0) | global(0, 1))",
             lambda i, j: j <= i and (i - 20 <= j or {i, j} & {0, 1})),
            (["window(3, 5) | prefix(7)"], "window(3, 5) | prefix(7)", lambda i, j: i - 3 <= j <= i + 5 or j < 7),
            (["--causal", "--fixed", "16,2"], "causal & fixed(16, 2)",
             lambda i, j: j <= i and (i // 16 == j // 16 or j % 16 >= 14)),
            (["--window=-1,0"], "window(-1, 0)", lambda i, j: j <= i),
            (["--dilated", "2,2,9"], "dilated(2, 2, 9)", lambda i, j: (j - i) % 9 == 0 and abs(j - i) <= 18),
            ([], "everything", lambda i, j: True),
        ]
        for arguments, text, sees in cases:
            for size, queries, keys in (("70", 70, 70), ("33,70", 33, 70)):
                with self.subTest(pattern=text, size=size):
                    got = self.report(*arguments, "--size", size, "--block", "8")
                    visited, pairs = brute_force(sees, queries, keys, 8)
                    self.assertEqual(got["pattern"], text)
                    self.assertEqual(got["pairs"], {"total": queries * keys, "visible": pairs})
                    drawn = {(r, c) for r, row in enumerate(got["rows"]) for c, cell in enumerate(row) if cell != "."}
                    self.assertEqual(drawn, visited)
                    self.assertEqual(got["blocks"]["visited"], len(visited))
                    self.assertAlmostEqual(got["cost"]["of_dense"], len(visited) / got["blocks"]["total"])
                    for r, row in enumerate(got["rows"]):
                        for c, cell in enumerate(row):
                            if cell == "#":
                                inside = [(i, j) for i in range(8 * r, min(8 * r + 8, queries))
                                          for j in range(8 * c, min(8 * c + 8, keys))]
                                self.assertTrue(all(sees(i + keys - queries, j) for i, j in inside))

    def test_text_draws_and_tells_the_cost(self):
        text = self.succeed("patterns", "--causal", "--size", "128", "--ascii")
        self.assertIn("causal\n128 queries x 128 keys, blocks of 32, head 0\n\noo. . .\n##oo. .\n####oo.\n######oo\n", text)
        self.assertIn("visited blocks   10 of 16 (62.5 %): 6 full, 4 partial\n", text)
        self.assertIn("cost             0.625 of dense, 1.000 of causal\n", text)
        self.assertIn("▒▒", self.succeed("patterns", "--causal"))

    def test_many_blocks_fit_the_terminal(self):
        text = self.succeed("patterns", "--causal", "--window", "500,0", "--size", "100000", "--block", "64")
        self.assertLessEqual(max(map(len, text.splitlines())), 130)

    def test_heads_differ(self):
        pattern = "per_head(causal, everything)"
        self.assertEqual(self.report(pattern, "--head", "0")["blocks"]["visited"], 36)
        self.assertEqual(self.report(pattern, "--head", "1")["blocks"]["visited"], 64)

    def test_svg_is_a_picture_of_the_pattern(self):
        target = self.folder / "pattern.svg"
        self.succeed("patterns", "causal & window(9, 0)", "--size", "40", "--block", "8", "--svg", target)
        root = xml.etree.ElementTree.parse(target).getroot()
        name = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.find(name + "title").text, "causal & window(9, 0)")
        some, every = (len(group) for group in root.findall(name + "g"))
        self.assertEqual((some, every), (5, 0))  # one run of partial blocks a row; a window of 10 fills no block of 8
        self.refuse("patterns", "--svg", self.folder / "no" / "folder.svg", saying="--svg: cannot write")

    def test_refusals(self):
        self.refuse("patterns", "casual", saying="text: expected a pattern (causal, ")
        self.refuse("patterns", "--window", "1", saying="expected ',' at character 9, got ')'")
        self.refuse("patterns", "--window=-2,0", saying="[patterns::window] left: expected at least -1, got -2")
        self.refuse("patterns", "--size", "0", saying="--size")
        self.refuse("patterns", "--size", "1,2,3", saying="--size: expected T or T,S, got '1,2,3'")
        self.refuse("patterns", "--block", "0", saying="--block: expected at least 1")
        self.refuse("patterns", "--size", "16777216", saying="--block: expected at least 4096")
        self.refuse("patterns", "--head=-1", saying="--head: expected 0 or more, got -1")


if __name__ == "__main__":
    unittest.main()
