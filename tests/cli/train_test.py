import json
import os
import random
import resource
import signal
import subprocess
import time
import unittest

from support import HEED, CliTest, run

TINY = ["--d-model", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--threads", "1", "--quiet"]


class Train(CliTest):
    def losses(self, folder):
        with open(folder / "log.jsonl") as log:
            return [(line["step"], line["loss"]) for line in map(json.loads, log)]

    def test_a_run_its_score_and_its_files(self):
        out = self.folder / "run"
        text = self.succeed("train", "--task", "copy", "--out", out, "--steps", "20", *TINY)
        self.assertIn("20 steps of 4 sequences", text)
        self.assertIn("Held-out questions of copy", text)
        self.assertEqual([step for step, _ in self.losses(out)], list(range(1, 21)))
        for name in ("run.json", "last.safetensors", "loss.svg", "best/config.json", "best/model.safetensors"):
            self.assertTrue((out / name).exists(), name)
        score = json.loads(self.succeed("eval", out, "--json", "--batches", "2"))
        self.assertGreater(score["loss"], 0)
        self.assertEqual(score["sequences"], 8)
        self.refuse("train", "--task", "copy", "--out", out, "--steps", "20", *TINY, saying="--resume")

    def test_killed_at_any_moment_it_goes_on_the_same(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        config = {"data": {"task": "induction"}, "train": {"steps": 60, "batch": 4, "save_every": 5, "validation_batches": 1}}
        (self.folder / "run.json").write_text(json.dumps(config))
        arguments = ["train", self.folder / "run.json", "--d-model", "16", "--layers", "1", "--heads", "2", "--threads", "1", "--quiet"]
        self.succeed(*arguments, "--out", whole)
        dice = random.Random(11)
        for _ in range(int(os.environ.get("HEED_KILLS", "6"))):  # the long run: HEED_KILLS=20
            process = subprocess.Popen([HEED, *map(str, arguments), "--out", str(parts), "--resume"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(dice.uniform(0.01, 0.4))
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.succeed(*arguments, "--out", parts, "--resume")
        self.assertEqual(self.losses(parts), self.losses(whole))
        self.assertEqual((parts / "best/model.safetensors").read_bytes(), (whole / "best/model.safetensors").read_bytes())

    def test_own_text_and_lines(self):
        text = self.folder / "text.txt"
        text.write_bytes(os.urandom(3000) + b"the quick brown fox " * 200)
        self.succeed("train", "--text", text, "--out", self.folder / "a", "--steps", "3", "--tokens", "32", *TINY)
        self.assertIn("bits a byte", self.succeed("eval", self.folder / "a"))
        lines = self.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"source": f"{n}+1=", "target": str(n + 1)}) + "\n" for n in range(50)))
        self.succeed("train", "--lines", lines, "--out", self.folder / "b", "--steps", "3", "--tokens", "32", *TINY)

    def test_what_was_trained_writes(self):
        """The folder of a run is a model for every other command."""
        text = self.folder / "text.txt"
        text.write_bytes(b"the quick brown fox " * 200)
        run_folder = self.folder / "a"
        self.assertIn(f"heed generate {run_folder}",
                      self.succeed("train", "--text", text, "--out", run_folder, "--steps", "60", "--tokens", "32",
                                   "--learning-rate", "3e-2", "--warmup", "5", *TINY))
        self.assertIn("quick", self.succeed("generate", run_folder, "the ", "--max-new-tokens", "40", "--quiet"))
        self.assertIn("perplexity", self.succeed("score", run_folder, "--file", text, "--window", "32", "--quiet"))
        self.assertIn("1 tokens", self.succeed("tokenize", run_folder, "a"))
        dates = self.folder / "dates"
        self.succeed("train", "--task", "dates", "--out", dates, "--steps", "2", *TINY)
        self.succeed("translate", dates, "May 3, 1999", "--max-new-tokens", "4", "--quiet")

    def test_fine_tuning_goes_on_with_the_tokenizer_of_the_model(self):
        lines = self.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"source": f"{n}+1=", "target": str(n + 1)}) + "\n" for n in range(50)))
        first, second = self.folder / "first", self.folder / "second"
        self.succeed("train", "--lines", lines, "--out", first, "--steps", "3", "--tokens", "32", *TINY)
        (first / "best/chat_template.jinja").write_text("{{ messages[0].content }}")
        self.succeed("train", "--model", first / "best", "--lines", lines, "--out", second, "--steps", "2", "--tokens", "32",
                     "--dropout", "0.1", "--schedule", "constant", "--threads", "1", "--quiet")
        self.assertEqual((first / "best/tokenizer.json").read_text(), (second / "best/tokenizer.json").read_text())
        self.assertTrue((second / "best/chat_template.jinja").exists())
        (first / "best/tokenizer.json").unlink()
        self.refuse("train", "--model", first / "best", "--lines", lines, "--out", self.folder / "third", saying="tokenizer.json")

    def test_a_file_of_tokens(self):
        text, tokens = self.folder / "text.txt", self.folder / "tokens.bin"
        text.write_text("the quick brown fox " * 200)
        self.succeed("train", "--text", text, "--out", self.folder / "a", "--steps", "1", "--tokens", "16", *TINY)
        for kind, width in (("u16", 2), ("u32", 4)):
            self.succeed("tokenize", self.folder / "a", "--file", text, "--token-file", tokens, "--token-type", kind)
            self.assertEqual(tokens.stat().st_size, width * 4000)
            self.succeed("train", "--token-file", tokens, "--token-type", kind, "--out", self.folder / kind, "--steps", "2",
                         "--tokens", "16", *TINY)
        self.assertEqual(self.losses(self.folder / "u16"), self.losses(self.folder / "u32"))
        self.refuse("train", "--token-file", tokens, "--token-type", "u8", "--out", self.folder / "b", saying="--token-type")

    def test_documents_end_to_end(self):
        lines = self.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"text": "word " * (n % 7 + 1)}) + "\n" for n in range(60)))
        arguments = ["--lines", lines, "--packed", "--steps", "3", "--tokens", "32", *TINY]
        self.succeed("train", *arguments, "--out", self.folder / "a")
        with open(self.folder / "a/log.jsonl") as log:  # no padding: every step has all its tokens
            self.assertEqual([json.loads(line)["tokens"] for line in log], [4 * 32] * 3)
        self.assertTrue(json.loads((self.folder / "a/run.json").read_text())["data"]["packed"])
        self.refuse("train", "--task", "copy", "--packed", "--out", self.folder / "b", saying="packed")

    def test_what_every_head_looks_at(self):
        out, picture = self.folder / "run", self.folder / "heads.svg"
        self.succeed("train", "--task", "induction", "--out", out, "--steps", "2", *TINY)
        text = self.succeed("inspect", out, "--prompt", "a3b5|a", "--out", picture)
        self.assertEqual([line for line in text.splitlines() if "head" in line][:2], ["layer 1, head 1", "layer 1, head 2"])
        svg = picture.read_text()
        self.assertIn("looks at", svg)
        self.assertTrue(svg.endswith("</svg>\n"))
        self.assertEqual(self.succeed("inspect", out, "--prompt", "a3b5|a", "--head", "2").count("layer 1, head"), 1)
        self.refuse("inspect", out, "--prompt", "a", "--layer", "9", saying="--layer: expected 1 to 1, got 9")
        self.succeed("train", "--task", "dates", "--out", self.folder / "dates", "--steps", "1", *TINY)
        text = self.succeed("inspect", self.folder / "dates", "--prompt", "3.5.1999")
        for name in ("encoder layer 1, head 2", "decoder layer 1, head 1", "cross layer 1, head 2"):
            self.assertIn(name, text)

    def test_compare_is_a_table_and_a_chart(self):
        out = self.folder / "compared"
        text = self.succeed("compare", "--task", "copy", "--kinds", "mha,mla,linear,hybrid", "--steps", "4", "--out", out, *TINY)
        rows = [line.split() for line in text.splitlines()]
        self.assertEqual([row[0] for row in rows if len(row) > 8][1:], ["mha", "mla", "linear", "hybrid"])
        report = {entry["kind"]: entry for entry in json.loads((out / "compare.json").read_text())}
        self.assertEqual(report["linear"]["cache_bytes_per_token"], 0)
        self.assertLess(report["mla"]["cache_bytes_per_token"], report["mha"]["cache_bytes_per_token"])
        self.assertIn("</svg>", (out / "compare.svg").read_text())

    def test_mistakes(self):
        out = ["--out", self.folder / "x"]
        self.refuse("train", *out, saying="expected a CONFIG, --task, --text, --lines or --token-file")
        self.refuse("train", "--task", "dat", *out, saying="dates, grammar, induction")
        self.refuse("train", "--task", "copy", "--attention", "mhaa", *out, saying="mhaa")
        self.refuse("train", "--text", self.folder / "none", *out, saying="none")
        self.refuse("train", self.folder / "none.json", *out, saying="none.json")
        (self.folder / "bad.json").write_text('{"data": {"task": "copy"}, "train": {"stepps": 1}}')
        self.refuse("train", self.folder / "bad.json", *out, saying="stepps")
        self.refuse("eval", self.folder / "none", saying="run.json")
        self.refuse("compare", "--task", "copy", "--kinds", "mha,x", *out, *TINY, "--steps", "1", saying="'x'")

    def test_a_full_disk_loses_nothing(self):
        """Files may not grow beyond what the first state needs, as if the disk were full from then on."""
        out = self.folder / "run"
        arguments = ["train", "--task", "copy", "--out", out, "--steps", "12", *TINY]
        self.succeed("train", "--task", "copy", "--out", self.folder / "whole", "--steps", "12", *TINY)

        def little_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        result = run(*arguments, preexec_fn=little_room)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.succeed(*arguments, "--resume")
        self.assertEqual(self.losses(out), self.losses(self.folder / "whole"))


if __name__ == "__main__":
    unittest.main()
