import json
import unittest

from support import CliTest

SHAPE = ["explain", "--shape", "2,8,2,16,32,64"]


class Explain(CliTest):
    def test_text_is_aligned_and_marks_one_kernel(self):
        lines = self.succeed(*SHAPE, "--causal", "--dtype", "bf16").splitlines()
        self.assertEqual(lines[0], "q [2,8,16,64]  k [2,2,32,64]  v [2,2,32,64]  bf16")
        self.assertEqual(lines[1], "options: causal")
        column = lines[3].index("fits")
        rows = lines[4:]
        self.assertEqual(sum(row.startswith("->") for row in rows), 1)
        for row in rows:
            self.assertIn(row[column:column + 4].strip(), ("yes", "no"))
            self.assertEqual(row[column + 4:column + 6], "  ")
        self.assertTrue(rows[-1][3:].startswith("reference"))

    def test_json_names_every_kernel(self):
        report = json.loads(self.succeed(*SHAPE, "--json", "--window", "7,0", "--dropout", "0.5"))
        self.assertEqual(report["shape"], {"B": 2, "H": 8, "G": 2, "T": 16, "S": 32, "D": 64, "E": 64, "dtype": "f32"})
        self.assertEqual(report["options"]["window"], [7, 0])
        verdicts = {v["kernel"]: v for v in report["verdicts"]}
        self.assertTrue(verdicts[report["kernel"]]["fits"])
        self.assertTrue(verdicts[report["kernel"]]["reason"].startswith("runs"))
        self.assertTrue(all(v["reason"] for v in verdicts.values()))
        self.assertEqual(report["verdicts"][-1]["kernel"], "reference")

    def test_value_size_and_tensors(self):
        text = self.succeed("explain", "--shape", "1,6,3,4,5,8,12", "--dtype", "f64", "--bias", "head", "--mask",
                            "--lengths", "--sinks", "--alibi", "--softcap", "30")
        self.assertIn("v [1,3,5,12]  f64", text)
        self.assertIn("options: softcap 30, bias [1,6,4,5], ALiBi, mask [1,1,4,5], key lengths, sinks\n", text)
        self.assertIn("1 packed sequences", self.succeed("explain", "--shape", "1,1,1,4,5,8", "--packed"))
        self.assertIn("bias [2,1,1,32]", self.succeed(*SHAPE, "--bias", "key"))
        self.assertIn("bias [2,8,16,32]", self.succeed(*SHAPE, "--bias", "full"))

    def test_a_kernel_asked_for(self):
        report = json.loads(self.succeed(*SHAPE, "--kernel", "reference", "--json"))
        self.assertEqual(report["kernel"], "reference")
        report = json.loads(self.succeed(*SHAPE, "--json", env={"HEED_KERNEL": "reference"}))
        self.assertEqual(report["kernel"], "reference")
        self.refuse(*SHAPE, "--kernel", "warp", saying="[explain] kernel: expected one of")

    def test_other_operations(self):
        text = self.succeed("explain", "matmul", "--shape", "8,16,32", "--dtype", "f64")
        self.assertIn("matmul  8,16,32  f64", text)
        self.assertIn("-> reference", text)
        for operation, shape in (("rope", "1,2,3,8"), ("merge", "1,2,3,8"), ("linear_attend", "1,2,1,5,5,8"),
                                 ("attend_backward", "1,2,1,5,5,8"), ("layer_norm", "3,8"), ("rms_norm", "3,8")):
            report = json.loads(self.succeed("explain", operation, "--shape", shape, "--json", "--kernel", "reference"))
            self.assertEqual([entry["kernel"] for entry in report], ["reference"], operation)
            self.assertEqual(report[0]["operation"], operation)
            self.assertGreaterEqual(len(report[0]["verdicts"]), 2)
        self.refuse("explain", "matmul", "--shape", "8,16", saying="expected M,N,K for matmul, got '8,16'")
        self.refuse("explain", "knit", "--shape", "8,16", saying="got 'knit'")
        self.refuse("explain", "matmul", "--shape", "8,16,4", "--kernel", "warp", saying="expected one of onednn")

    def test_refusals(self):
        self.refuse("explain", saying="--shape is required")
        self.refuse("explain", "--shape", "1,2,3", saying="expected B,H,G,T,S,D")
        self.refuse("explain", "--shape", "1,8,3,4,4,4", saying="k: expected 8, 4, 2 or 1 heads for the 8 of q, got 3")
        self.refuse("explain", "--shape", "1,8,8,4,4,x", saying="got 'x'")
        self.refuse("explain", "--shape", "1,8,8,4,4,", saying="got ''")
        self.refuse("explain", "--shape", "1,8,8,4,4,0", saying="head_size: expected 1 or more, got 0")
        self.refuse("explain", "--shape", "1,-8,8,4,4,1", saying="got '-8'")
        self.refuse(*SHAPE, "--dtype", "i8", saying="expected f32, bf16, f16 or f64, got 'i8'")
        self.refuse(*SHAPE, "--bias", "wide", saying="expected full, head, one or key")
        self.refuse(*SHAPE, "--packed", saying="batch 1 where sequences are packed")
        self.refuse(*SHAPE, "--dropout", "-0.1", saying="expected 0 <= p < 1")


if __name__ == "__main__":
    unittest.main()
