"""The Look part's answers: weights are those of transformers, scores follow from them."""
import math
import os
import tempfile
import unittest

from models import golden, make_gpt2, read_safetensors
from support import Serve


class Weights(unittest.TestCase):
    def compare(self, server, body, tensor, where):
        (_, heads, rows, columns), numbers = tensor
        for head in range(heads):
            tile = server.ask("/api/look/map", {**body, "head": head, "cells": 128})["map"]
            self.assertEqual([len(tile), len(tile[0])], [rows, columns], where)
            for i in range(rows):
                for j in range(columns):
                    self.assertAlmostEqual(tile[i][j], numbers[(head * rows + i) * columns + j], delta=1e-5, msg=where)

    def test_they_are_those_of_transformers(self):
        for name in ("gpt2-scaled", "llama", "gemma2-softcap", "bloom-alibi", "mistral-window", "gpt-oss-sinks"):
            expected = read_safetensors(os.path.join(golden(name), "expected.safetensors"))
            tokens = expected["input_ids"][0][1]
            self.assertEqual(sum(expected["attention_mask"][1][:tokens]), tokens, name)
            body = {"ids": list(expected["input_ids"][1][:tokens])}
            with Serve(golden(name)) as server:
                layer = 0
                while f"attention.{layer}" in expected:
                    self.compare(server, {**body, "layer": layer}, expected[f"attention.{layer}"], f"{name} {layer}")
                    layer += 1
                self.assertGreater(layer, 0)
                self.assertEqual(server.ask("/api/look", body)["heads"][-1]["layer"], layer - 1)

    def test_scores_follow_from_the_weights(self):
        ids = [3, 5, 7, 3, 5, 9, 3]
        with Serve(golden("gpt2-scaled")) as server:
            for head in server.ask("/api/look", {"ids": ids})["heads"]:
                w = server.ask("/api/look/map", {"ids": ids, "layer": head["layer"], "head": head["head"]})["map"]
                n = len(ids)
                entropy = -sum(x * math.log(x) for row in w for x in row if x > 0) / n
                distance = sum(x * abs(i - j) for i, row in enumerate(w) for j, x in enumerate(row)) / n
                duplicates = [[w[i][j] for j in range(i) if ids[j] == ids[i]] for i in range(n)]
                inductions = [[w[i][j] for j in range(1, i + 1) if ids[j - 1] == ids[i]] for i in range(n)]
                mean = lambda lists: sum(map(sum, lists)) / max(1, sum(1 for x in lists if x))
                for name, want in (("entropy", entropy), ("distance", distance), ("first", sum(row[0] for row in w) / n),
                                   ("previous", sum(w[i][i - 1] for i in range(1, n)) / (n - 1)), ("duplicate", mean(duplicates)), ("induction", mean(inductions))):
                    self.assertAlmostEqual(head[name], want, places=9, msg=name)
                cell = server.ask("/api/look/cell", {"ids": ids, "layer": head["layer"], "head": head["head"], "row": 5, "column": 2})
                self.assertAlmostEqual(cell["weight"], w[5][2])
                self.assertAlmostEqual(cell["row_sum"], 1, places=5)
                self.assertAlmostEqual(cell["below_best"], math.log(w[5][2] / max(w[5])))

    def test_an_encoder_decoder_shows_its_alignment(self):
        with Serve(golden("marian")) as server:
            answer = server.ask("/api/look", {"ids": [4, 5, 6, 7, 2]})
            self.assertEqual({head["kind"] for head in answer["heads"]}, {"encoder", "decoder", "cross"})
            cross = server.ask("/api/look/map", {"ids": [4, 5, 6, 7, 2], "kind": "cross"})
            self.assertEqual([cross["columns"], cross["rows"]], [5, len(answer["target"])])
            for row in cross["map"]:
                self.assertAlmostEqual(sum(row), 1, places=5)

    def test_zoom(self):
        with tempfile.TemporaryDirectory() as folder, Serve(make_gpt2(os.path.join(folder, "tiny"))) as server:
            ids = [(7 * n) % 900 for n in range(200)]
            whole = server.ask("/api/look/map", {"ids": ids, "cells": 128})
            self.assertEqual(len(whole["map"]), 128)
            part = server.ask("/api/look/map", {"ids": ids, "top": 100, "left": 40, "height": 60, "width": 60, "cells": 128})["map"]
            for row in (0, 30, 59):
                profile = server.ask("/api/look/cell", {"ids": ids, "row": 100 + row, "column": 40})["profile"]
                self.assertEqual(part[row], profile[40:100])
            self.assertAlmostEqual(max(map(max, whole["map"])), 1, places=5)

    def test_bad_requests(self):
        with Serve(golden("gpt2-scaled")) as server:
            for path, body, word in (("", {"prompt": "hello"}, "prompt"), ("", {"ids": []}, "prompt"), ("", {"ids": [99]}, "ids"), ("", {"ids": [1] * 65}, "position"),
                                     ("/map", {"ids": [1, 2], "layer": 9}, "layer"), ("/map", {"ids": [1, 2], "head": -1}, "head"), ("/map", {"ids": [1, 2], "kind": "cross"}, "kind"),
                                     ("/map", {"ids": [1, 2], "top": 1, "height": 2}, "height"), ("/cell", {"ids": [1, 2], "row": 2}, "row"), ("", {"ids": [1] * 100000}, "prompt")):
                self.assertIn(word, server.ask("/api/look" + path, body, expect=400)["error"]["message"])
        with Serve() as server:
            self.assertEqual(server.request("POST", "/api/look", "{}")[0], 404)


if __name__ == "__main__":
    unittest.main()
