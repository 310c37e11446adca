import json
import math
import pathlib
import unittest
import xml.etree.ElementTree

from support import DATA, CliTest

NAMES = ["none", "linear", "ntk", "dynamic", "yarn", "llama3"]


class Positions(CliTest):
    def report(self, *arguments):
        return json.loads(self.succeed("positions", "--json", *arguments))

    def test_json_has_every_pair_of_every_scaling(self):
        report = self.report("--size", "64", "--trained", "2048", "--length", "8192")
        self.assertEqual([s["name"] for s in report["scalings"]], NAMES)
        for i, frequency in enumerate(report["frequencies"]):
            self.assertAlmostEqual(frequency, 10000 ** (-2 * i / 64), delta=1e-15)
        linear = report["scalings"][1]
        for scaled, plain in zip(linear["frequencies"], report["frequencies"]):
            self.assertAlmostEqual(scaled, plain / 4, delta=1e-15)
        self.assertAlmostEqual(report["scalings"][4]["attention_factor"], 0.1 * math.log(4) + 1)
        for scaling in report["scalings"]:
            self.assertEqual(scaling["kept"] + scaling["blended"] + scaling["slowed"], 32)
            factor = scaling["attention_factor"] ** 2
            for distance, score in zip(report["distances"], scaling["scores"]):
                mean = sum(math.cos(distance * f) for f in scaling["frequencies"]) / 32
                self.assertAlmostEqual(score, factor * mean, places=9)

    def test_text(self):
        text = self.succeed("positions", "--trained", "4096", "--length", "16384", "--scaling", "none,yarn")
        self.assertIn("128 numbers rotate (64 pairs), theta 10000", text)
        self.assertIn("trained on 4,096 tokens, read up to 16,384 (4 times)", text)
        rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("none ", "yarn "))}
        self.assertEqual(rows["none"][1:5], ["64", "0", "0", "18"])
        self.assertEqual(rows["yarn"][1:5], ["21", "25", "18", "0"])

    def test_configs_of_both_spellings(self):
        new = self.report("--config", DATA / "configs" / "llama-llama3.json")
        self.assertEqual((new["trained"], new["theta"]), (32, 500000))
        self.assertEqual(new["scalings"][0]["name"], "config: llama3")
        config = json.loads((DATA / "configs" / "llama-llama3.json").read_text())
        parameters = config.pop("rope_parameters")
        config["rope_theta"] = parameters.pop("rope_theta")
        parameters["type"] = parameters.pop("rope_type")
        config["rope_scaling"] = parameters
        path = pathlib.Path(self.folder) / "config.json"
        path.write_text(json.dumps(config))
        for old in (self.report("--config", path), self.report("--config", self.folder)):
            self.assertEqual(old["scalings"], new["scalings"])

    def test_svg_is_xml_with_a_line_for_each_scaling_in_each_panel(self):
        path = pathlib.Path(self.folder) / "rope.svg"
        self.succeed("positions", "--svg", path)
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        curves = [p for p in root.iter() if p.tag.endswith("path") and p.get("stroke-width") == "1.8"]
        self.assertEqual(len(curves), 3 * len(NAMES))
        texts = [t.text for t in root.iter() if t.tag.endswith("text")]
        for name in NAMES:
            self.assertIn(name, texts)

    def test_refusals(self):
        self.refuse("positions", "--size", "7", saying="rope.size: expected an even number from 2 to 2^20, got 7")
        self.refuse("positions", "--theta", "0", saying="rope.theta: expected a positive number, got 0")
        self.refuse("positions", "--factor", "0", saying="linear.factor: expected a positive number, got 0")
        self.refuse("positions", "--scaling", "magic", saying="--scaling: expected none, linear,")
        self.refuse("positions", "--length", "x", saying="--length: expected a whole number")
        self.refuse("positions", "--layers", "full_attention", saying="--layers: expected together with --config")
        self.refuse("positions", "--config", "missing.json", saying="cannot read missing.json")
        self.refuse("positions", "--config", DATA / "configs" / "gpt2.json", saying="rotary positions")
        self.refuse("positions", "--config", DATA / "configs" / "llama.json", "--layers", "full_attention",
                    saying="--layers: expected")
        self.refuse("positions", "--svg", "/nowhere/at/all.svg", saying="cannot write")


if __name__ == "__main__":
    unittest.main()
