import json
import pathlib
import subprocess
import tempfile
import unittest

from support import HEED, CliTest, run
from tiny_model import write_tiny_model


class Generation(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.model = write_tiny_model(pathlib.Path(cls.scratch.name) / "tiny")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def tokens(self, *arguments):
        return json.loads(self.succeed("generate", self.model, "ab", "--max-new-tokens", "12", "--quiet", "--json", *arguments))["tokens"]

    def test_same_text_for_a_seed_and_with_guesses(self):
        greedy = self.tokens()
        self.assertEqual(len(greedy), 12)
        self.assertEqual(self.tokens("--lookup", "4"), greedy)
        self.assertEqual(self.tokens("--draft", self.model), greedy)
        self.assertEqual(self.tokens("--beams", "1"), greedy)
        drawn = self.tokens("--temperature", "2", "--seed", "5")
        self.assertEqual(self.tokens("--temperature", "2", "--seed", "5", "--lookup", "3"), drawn)
        self.assertNotEqual(self.tokens("--temperature", "2", "--seed", "6"), drawn)
        self.assertEqual(len(self.tokens("--beams", "3")), 12)

    def test_text_comes_as_it_is_made(self):
        result = run("generate", self.model, "ab", "--max-new-tokens", "5")
        self.assertEqual(result.returncode, 0)
        self.assertIn("tokens/s", result.stderr)

    def test_scores_and_vectors(self):
        report = json.loads(self.succeed("score", self.model, "hello world", "--quiet", "--json"))
        self.assertEqual(report["tokens"], 10)
        self.assertGreater(report["perplexity"], 1)
        rows = self.succeed("embed", self.model, "one", "two", "--quiet").splitlines()
        self.assertEqual([len(row.split()) for row in rows], [16, 16])
        alike = self.succeed("embed", self.model, "one", "two", "--similarity", "--quiet").splitlines()
        self.assertEqual(alike[0].split()[0], "1.0000")

    def test_chat(self):
        template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
        (self.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<end>"}))
        result = subprocess.run([HEED, "chat", self.model, "--max-new-tokens", "4", "--quiet"], input="hi\n\n", capture_output=True, text=True,
                                errors="replace", timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        prompt = "[user]hi[assistant]"
        same = self.succeed("generate", self.model, prompt, "--max-new-tokens", "4", "--quiet")
        self.assertEqual(result.stdout, same)

    def test_inspect(self):
        text = self.succeed("inspect", self.model)
        self.assertIn("family       gpt2", text)
        self.assertIn("vocabulary   257", text)
        self.assertIn("tensors", self.succeed("inspect", self.model, "--tensors"))
        self.assertIn("wte.weight", self.succeed("inspect", self.model / "model.safetensors"))
        json.loads(self.succeed("inspect", self.model, "--config"))

    def test_numbers_of_8_bits(self):
        folder = pathlib.Path(self.scratch.name) / "small_numbers"
        folder.mkdir()
        header = {"plain": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                  "small": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [4, 8]}}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4) + b"\x38\xb8\x7e\x01")
        rows = json.loads(self.succeed("inspect", folder / "model.safetensors", "--json"))
        self.assertEqual([(row["dtype"], row["bytes"]) for row in rows], [("f32", 4), ("F8_E4M3", 4)])
        out = folder / "converted"
        self.succeed("convert", folder, "--dtype", "bf16", "--out", out)
        written = (out / "model.safetensors").read_bytes()
        self.assertIn(bytes.fromhex("803f 80bf e043 003b"), written)  # 1, -1, 448, 2^-9

    def test_convert_types(self):
        out = pathlib.Path(self.scratch.name) / "half"
        self.succeed("convert", self.model, "--dtype", "bf16", "--out", out)
        self.assertIn("bf16", self.succeed("inspect", out, "--tensors"))
        self.assertEqual(len(self.succeed("generate", out, "ab", "--max-new-tokens", "3", "--quiet", "--json")) > 0, True)
        self.refuse("convert", self.model, "--out", out, saying="--dtype")
        self.refuse("convert", self.model, "--dtype", "f32", "--out", self.model, saying="--out")
        self.refuse("convert", self.model / "config.json", "--out", out, saying="GGUF")

    def test_convert_to_shards(self):
        out = pathlib.Path(self.scratch.name) / "shards"
        self.succeed("convert", self.model, "--max-shard", "8KB", "--out", out)
        self.assertGreater(len(list(out.glob("model-0*-of-0*.safetensors"))), 2)
        generated = json.loads(self.succeed("generate", out, "ab", "--max-new-tokens", "12", "--quiet", "--json"))["tokens"]
        self.assertEqual(generated, self.tokens())
        self.refuse("convert", self.model, "--max-shard", "many", "--out", out, saying="--max-shard")
        self.refuse("convert", self.model, "--kv-heads", "1", "--out", out, saying="kv_heads")

    def test_weights_in_fewer_bits(self):
        greedy = self.tokens()
        self.assertEqual(self.tokens("--weights", "f32"), greedy)
        for form in ("bf16", "int8", "int4"):
            self.assertEqual(len(self.tokens("--weights", form)), 12)
            report = json.loads(self.succeed("score", self.model, "hello world", "--weights", form, "--quiet", "--json"))
            plain = json.loads(self.succeed("score", self.model, "hello world", "--quiet", "--json"))
            self.assertAlmostEqual(report["stored_perplexity"], plain["perplexity"], places=3)
            self.assertGreater(report["logit_error"], 0)
            self.assertLess(report["logit_error"], {"bf16": 0.1, "int8": 0.2, "int4": 3}[form])
        self.assertIn("Kullback-Leibler", self.succeed("score", self.model, "hello world", "--weights", "int8", "--quiet"))
        self.refuse("generate", self.model, "ab", "--weights", "int7", saying="--weights")

    def test_what_cannot_be_done_is_refused(self):
        self.refuse("generate", "absent", "x", saying="absent")
        self.refuse("generate", self.model, "x", "--max-new-tokens", "100", "--quiet", saying="positions of the model")
        self.refuse("generate", self.model, "x", "--top-p", "2", "--quiet", saying="top_p")
        self.refuse("generate", self.model, "x", "--beams", "2", "--temperature", "1", "--quiet", saying="--beams")
        self.refuse("translate", self.model, "x", "--quiet", saying="encoder-decoder")
        self.refuse("score", self.model, "x", "--window", "4", "--stride", "9", "--quiet", saying="stride")


class Tokenize(CliTest):
    def test_train_encode_decode(self):
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            (scratch / "text.txt").write_text("the cat and the hat " * 20)
            self.succeed("tokenize", "--train", scratch / "text.txt", "--vocabulary", "270", "--out", scratch / "own.json")
            ids = self.succeed("tokenize", scratch / "own.json", "the hat", "--only-ids").split()
            self.assertEqual(self.succeed("tokenize", scratch / "own.json", "--ids", ",".join(ids)), "the hat\n")
            report = json.loads(self.succeed("tokenize", scratch / "own.json", "the hat", "--json"))
            self.assertEqual([str(number) for number in report["ids"]], ids)
        self.refuse("tokenize", "absent.json", "x", saying="absent.json")


if __name__ == "__main__":
    unittest.main()
