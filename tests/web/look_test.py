"""The Look part's answers: weights are those of transformers, scores follow from them."""
import math
import os
import tempfile
import unittest

from models import golden, make_gpt2, make_llama, read_safetensors
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
                self.assertEqual(cell["rank"], 1 + sum(x > w[5][2] for x in w[5]))
                for i, weight in enumerate(cell["column_profile"]["values"]):
                    self.assertAlmostEqual(weight, w[i][2], delta=1e-5)

    def check_parts(self, cell, want):
        """The steps of a score, each from the one before; and at their end the weight that transformers gave."""
        parts = cell["parts"]
        self.assertAlmostEqual(sum(parts["products"]), parts["dot"], places=9)
        self.assertAlmostEqual(parts["dot"] * parts["scale"], parts["scaled"], places=9)
        cap = parts["softcap"]
        self.assertAlmostEqual(cap * math.tanh(parts["scaled"] / cap) if cap else parts["scaled"], parts["capped"], places=9)
        self.assertAlmostEqual(parts["capped"] + parts["relative"] + parts["alibi"], parts["score"], places=9)
        if not parts["hidden_by"]:
            self.assertAlmostEqual(math.exp(parts["score"] - parts["log_sum"]), parts["weight"], places=9)
        self.assertAlmostEqual(parts["weight"], want, delta=1e-5)
        self.assertAlmostEqual(cell["weight"], want, delta=1e-5)

    def test_a_score_taken_apart_ends_in_the_weight_of_transformers(self):
        kinds = {"gpt2-scaled": (), "gemma2-softcap": ("softcap",), "bloom-alibi": ("alibi",), "mistral-window": (), "gpt-oss-sinks": (), "deepseek-v2-mla": (), "qwen3": ()}
        hidden = set()
        for name, used in kinds.items():
            expected = read_safetensors(os.path.join(golden(name), "expected.safetensors"))
            tokens = expected["input_ids"][0][1]
            ids = list(expected["input_ids"][1][:tokens])
            with Serve(golden(name)) as server:
                for layer in (n for n in (0, 1) if f"attention.{n}" in expected):
                    (_, heads, rows, columns), numbers = expected[f"attention.{layer}"]
                    for row, column in ((tokens - 1, 0), (tokens - 1, tokens - 2), (2, 1), (1, 3)):
                        head = (row + column + layer) % heads
                        cell = server.ask("/api/look/cell", {"ids": ids, "layer": layer, "head": head, "row": row, "column": column})
                        self.check_parts(cell, numbers[(head * rows + row) * columns + column])
                        hidden.add(cell["parts"]["hidden_by"])
                        for part in used:
                            self.assertTrue(cell["parts"][part] or row == column, name)
                        self.assertEqual(cell["sink"] is not None, name == "gpt-oss-sinks")
        self.assertEqual(hidden, {"", "causal", "window"})

    def test_a_score_with_relative_bias_and_over_the_source(self):
        expected = read_safetensors(os.path.join(golden("t5"), "expected.safetensors"))
        tokens = expected["input_ids"][0][1]
        ids = list(expected["input_ids"][1][:tokens])
        self.assertEqual(sum(expected["attention_mask"][1][:tokens]), tokens)
        with Serve(golden("t5")) as server:
            (_, heads, rows, columns), numbers = expected["encoder_attention.1"]
            cell = server.ask("/api/look/cell", {"ids": ids, "kind": "encoder", "layer": 1, "head": 1, "row": 3, "column": 1})
            self.check_parts(cell, numbers[(rows + 3) * columns + 1])
            self.assertNotEqual(cell["parts"]["relative"], 0)
            cross = server.ask("/api/look/cell", {"ids": ids, "kind": "cross", "layer": 1, "head": 0, "row": 0, "column": 2})
            self.check_parts(cross, cross["weight"])

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
            whole = server.ask("/api/look/map", {"ids": ids, "cells": 64})
            self.assertEqual([whole["step"], len(whole["map"]), len(whole["map"][0])], [4, 50, 50])
            part = server.ask("/api/look/map", {"ids": ids, "step": 1, "top": 100, "left": 40, "cells": 64})["map"]
            for row in (0, 30, 63):
                values = server.ask("/api/look/cell", {"ids": ids, "row": 100 + row, "column": 40})["row_profile"]["values"]
                self.assertEqual(part[row], values[40:104])
            for r in range(25, 41):
                for c in range(10, 26):
                    square = [part[i - 100][j - 40] for i in range(4 * r, 4 * r + 4) for j in range(4 * c, 4 * c + 4)]
                    self.assertEqual(whole["map"][r][c], max(square))

    def test_a_long_text(self):
        """5,000 tokens: squares of 4 x 4 are kept, nearer maps are computed from their rows."""
        with tempfile.TemporaryDirectory() as folder, Serve(make_llama(os.path.join(folder, "long"))) as server:
            ids = [(n * n + n // 7) % 60 for n in range(5000)]
            answer = server.ask("/api/look", {"ids": ids})
            text = answer["text"]
            self.assertEqual({head["rows"] for head in answer["heads"]}, {5000})
            whole = server.ask("/api/look/map", {"text": text, "layer": 1, "head": 1})
            self.assertEqual([whole["step"], len(whole["map"])], [128, 40])
            for step, top, left in ((1, 4000, 3900), (2, 2048, 1024), (4, 4096, 0), (16, 3008, 1024)):
                tile = server.ask("/api/look/map", {"text": text, "layer": 1, "head": 1, "step": step, "top": top, "left": left, "cells": 8})
                self.assertEqual([tile["step"], tile["top"], tile["left"]], [step, top, left])
                want = [[0.0] * 8 for _ in range(8)]
                for r in range(8):
                    for c in range(8):
                        cells = server.ask("/api/look/map", {"text": text, "layer": 1, "head": 1, "step": 1, "top": top + r * step, "left": left + c * step, "cells": step})["map"]
                        want[r][c] = max(map(max, cells))
                self.assertEqual(tile["map"], want, step)
            cell = server.ask("/api/look/cell", {"text": text, "layer": 1, "head": 1, "row": 4999, "column": 17})
            self.assertEqual([cell["row_profile"]["step"], len(cell["row_profile"]["values"])], [5, 1000])
            self.assertAlmostEqual(cell["parts"]["weight"], cell["weight"], delta=1e-6)

    def test_what_is_kept_is_bounded(self):
        with tempfile.TemporaryDirectory() as folder, Serve(make_llama(os.path.join(folder, "long")), "--look-memory", "4") as server:
            first = server.ask("/api/look", {"ids": [1, 2, 3]})["text"]
            server.ask("/api/look/map", {"text": first})
            for n in range(6):
                server.ask("/api/look", {"ids": [n, 5, 6] * 300})
            lines = dict(line.split() for line in server.request("GET", "/metrics")[2].decode().splitlines() if not line.startswith("#"))
            self.assertLessEqual(int(lines["heed_look_bytes"]), 4 << 20)
            self.assertLessEqual(int(lines["heed_look_texts"]), 4)
            self.assertEqual(server.ask("/api/look/map", {"text": first}, expect=404)["error"]["type"], "text_gone")
            message = server.ask("/api/look", {"ids": [1] * 60000}, expect=400)["error"]["message"]
            self.assertIn("--look-memory", message)

    def test_heads_off(self):
        ids = [3, 5, 7, 3, 5, 9, 3]
        with Serve(golden("gpt2-scaled")) as server:
            plain = server.ask("/api/look", {"ids": ids})
            off = server.ask("/api/look", {"ids": ids, "off": [["self", 0, 1]]})
            every = server.ask("/api/look", {"ids": ids, "off": [[h["kind"], h["layer"], h["head"]] for h in plain["heads"]]})
            self.assertNotEqual(plain["next"], off["next"])
            self.assertNotEqual(off["next"], every["next"])
            # The layer's own attention is as it was; what comes behind it is not.
            first = lambda text, layer: server.ask("/api/look/map", {"text": text["text"], "layer": layer, "head": 0})["map"]
            self.assertEqual(first(plain, 0), first(off, 0))
            self.assertNotEqual(first(plain, 1), first(off, 1))
            for wrong in ([["self", 9, 0]], [["self", 0, 9]], [["cross", 0, 0]], [["self", 0]], "x", [[1, 2, 3]]):
                self.assertIn("off", server.ask("/api/look", {"ids": ids, "off": wrong}, expect=400)["error"]["message"])
        with Serve(golden("marian")) as server:
            text = server.ask("/api/look", {"ids": [4, 5, 6, 7, 2], "off": [["cross", 0, 1], ["decoder", 0, 0], ["encoder", 0, 0]]})
            self.assertTrue(text["next"])

    def test_the_logit_lens_ends_in_what_comes_next(self):
        ids = [3, 5, 7, 3, 5, 9, 3]
        with Serve(golden("gpt2-scaled")) as server:
            text = server.ask("/api/look", {"ids": ids})
            lens = server.ask("/api/look/lens", {"text": text["text"]})
            self.assertEqual(len(lens["layers"]), text["layers"] + 1)
            self.assertEqual(lens["layers"][-1]["best"], text["next"][:5])
            self.assertNotEqual(lens["layers"][0]["best"], lens["layers"][-1]["best"])
            # A prefix ends where an earlier token stands.
            prefix = server.ask("/api/look", {"ids": ids[:4]})["next"]
            for a, b in zip(server.ask("/api/look/lens", {"text": text["text"], "row": 3})["layers"][-1]["best"], prefix):
                self.assertEqual(a["id"], b["id"])
                self.assertAlmostEqual(a["p"], b["p"], places=5)
            self.assertIn("row", server.ask("/api/look/lens", {"text": text["text"], "row": 7}, expect=400)["error"]["message"])

    def test_two_models(self):
        with Serve(golden("gpt2-scaled"), golden("gpt2")) as server:
            ids = [3, 5, 7, 3, 5]
            one, other = (server.ask("/api/look", {"ids": ids, "model": n}) for n in (0, 1))
            self.assertEqual([one["model"], other["model"]], ["gpt2-scaled", "gpt2"])
            self.assertNotEqual(one["next"], other["next"])
            with Serve(golden("gpt2")) as alone:
                self.assertEqual(alone.ask("/api/look", {"ids": ids})["next"], other["next"])
            self.assertIn("model", server.ask("/api/look", {"ids": ids, "model": 2}, expect=400)["error"]["message"])

    def test_bad_requests(self):
        with Serve(golden("gpt2-scaled")) as server:
            for path, body, word in (("", {"prompt": "hello"}, "prompt"), ("", {"ids": []}, "prompt"), ("", {"ids": [99]}, "ids"), ("", {"ids": [1] * 65}, "position"),
                                     ("/map", {"ids": [1, 2], "layer": 9}, "layer"), ("/map", {"ids": [1, 2], "head": -1}, "head"), ("/map", {"ids": [1, 2], "kind": "cross"}, "kind"),
                                     ("/map", {"ids": [1, 2], "top": 2}, "top"), ("/map", {"ids": [1] * 64, "cells": 4, "step": 3}, "step"), ("/map", {"text": "nope"}, "text"), ("/cell", {"ids": [1, 2], "row": 2}, "row"), ("", {"ids": [1] * 100000}, "prompt")):
                self.assertIn(word, server.ask("/api/look" + path, body, expect=404 if word == "text" else 400)["error"]["message"])
        with Serve() as server:
            self.assertEqual(server.request("POST", "/api/look", "{}")[0], 404)


if __name__ == "__main__":
    unittest.main()
