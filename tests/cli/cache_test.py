import json
import math
import pathlib
import unittest
import xml.etree.ElementTree

from support import DATA, CliTest

STORAGES = ["f32", "bf16", "i8", "i4"]


def row_bytes(columns, storage):
    """One stored row of one head."""
    scales = {"i8": 1, "i4": math.ceil(columns / 32)}.get(storage, 0)
    return {"f32": 4 * columns, "bf16": 2 * columns, "i8": columns, "i4": math.ceil(columns / 2)}[storage] + 4 * scales


class Cache(CliTest):
    def report(self, *arguments):
        return json.loads(self.succeed("cache", "--json", *arguments))

    def kinds(self, *arguments):
        return {kind["label"].split(" ")[0].rstrip(","): kind for kind in self.report(*arguments)["kinds"]}

    def test_bytes_of_keys_and_values(self):
        kinds = self.kinds("llama-3-8b", "--length", "100", "--page-size", "16", "--memory", "1")
        heads = {"MHA": 32, "GQA": 8, "MQA": 1}
        self.assertEqual([name for name, kind in kinds.items() if kind["own"]], ["GQA"])
        for name, count in heads.items():
            for storage in STORAGES:
                token = 32 * count * 2 * row_bytes(128, storage)
                self.assertEqual(kinds[name]["bytes_per_token"][storage], token)
                self.assertEqual(kinds[name]["bytes_per_sequence"][storage], token * 112)
                self.assertEqual(kinds[name]["sequences"][storage], 10**9 // (token * 112))

    def test_mla_keeps_one_row_a_token(self):
        kind = self.kinds("deepseek-v3")["MLA"]
        self.assertTrue(kind["own"])
        self.assertEqual(kind["bytes_per_token"]["bf16"], 61 * 576 * 2)
        self.assertEqual(kind["bytes_per_token"]["i8"], 61 * (576 + 4))

    def test_states_have_one_size(self):
        short, long = (self.kinds("llama-3-8b", "--length", n, "--segment", "512") for n in ("10", "1000000"))
        for name in ("linear", "Infini"):
            self.assertEqual(short[name]["bytes_per_sequence"], long[name]["bytes_per_sequence"])
        self.assertEqual(short["linear"]["bytes_per_sequence"], {"f32": 4 * 32 * 8 * 128 * 129})
        self.assertEqual(short["Infini"]["bytes_per_sequence"]["bf16"],
                         32 * 8 * (4 * 128 * 129 + 2 * 512 * 256))

    def test_encoder_decoders_keep_the_source_too(self):
        kind = next(k for k in self.report("transformer-base", "--length", "16")["kinds"] if k["own"])
        self.assertEqual(kind["bytes_per_sequence"]["f32"], 16 * 2 * 6 * 8 * 2 * 64 * 4)
        self.assertIn("source of as many tokens", self.succeed("cache", "transformer-base"))

    def test_text_has_a_table_and_a_chart(self):
        text = self.succeed("cache", "llama-3-8b", "--length", "8192", "--batch", "2", "--memory", "24")
        self.assertRegex(text, r"Bytes of 8,192 tokens, batch 2, pages of 16\n.*\n *MHA +16 GiB +8 GiB")
        self.assertRegex(text, r"GQA 8 \* +\|#{10} +\| 1 GiB\n")
        self.assertRegex(text, r"Sequences of 8,192 tokens in 24 GB\n.*\n.*\n.*\n *GQA 8 \* +11 +22 +43 +71\n")
        self.assertLessEqual(max(map(len, text.splitlines())), 120)

    def test_a_config(self):
        for path in sorted((DATA / "configs").glob("llama-*.json"))[:1]:
            config = json.loads(path.read_text())
            own = next(k for k in self.report("--config", path)["kinds"] if k["own"])
            self.assertEqual(own["layers"], config["num_hidden_layers"])
            self.assertEqual(own["kv_heads"], config.get("num_key_value_heads", config["num_attention_heads"]))

    def test_svg_has_a_line_for_each_kind(self):
        path = pathlib.Path(self.folder) / "cache.svg"
        self.succeed("cache", "deepseek-v3", "--length", "131072", "--memory", "80", "--svg", path)
        root = xml.etree.ElementTree.parse(path).getroot()
        curves = [p for p in root.iter() if p.tag.endswith("path") and p.get("stroke-width") == "1.8"]
        self.assertEqual(len(curves), 6)
        self.assertIn("80 GB", "".join(root.itertext()))

    def test_refusals(self):
        self.refuse("cache", saying="got neither")
        self.refuse("cache", "gpt2", "--config", "x", saying="got both")
        self.refuse("cache", "lama", saying="lama")
        self.refuse("cache", "bert-base", saying="an encoder")
        self.refuse("cache", "gpt2", "--memory", "0", saying="--memory: expected a number of GB above 0, got '0'")
        self.refuse("cache", "gpt2", "--memory", "x", saying="--memory")
        self.refuse("cache", "gpt2", "--storage", "i2", saying="--storage: expected f32, bf16, f16, i8 or i4, got 'i2'")
        self.refuse("cache", "gpt2", "--length", "0", saying="--length")
        self.refuse("cache", "llama-3-70b", "--length", str(2**40), "--batch", str(2**40), saying="--batch")
        self.refuse("cache", "gpt2", "--svg", "/no/such/folder/x.svg", saying="cannot write")
        self.refuse("cache", "--config", "/no/such/file.json", saying="cannot read")


if __name__ == "__main__":
    unittest.main()
