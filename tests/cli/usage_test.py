import os
import re
import subprocess
import unittest

from support import HEED, CliTest, run

# As `heed --help` lists them: a new command is held to these rules without a word here.
COMMANDS = re.findall(r"^  ([a-z]+)  ", run("--help").stdout.split("Subcommands:")[1].split("Examples:")[0], re.MULTILINE)


class Usage(CliTest):
    def test_help_has_examples(self):
        self.assertLessEqual({"attend", "explain", "serve", "walkthrough"}, set(COMMANDS))
        text = self.succeed("--help")
        for command in COMMANDS:
            self.assertIn(f"\n  {command} ", text)
            self.assertIn(f"\n  heed {command}", text)
            own = self.succeed(command, "--help")
            self.assertIn(f"Usage: heed {command} ", own)
            self.assertRegex(own, rf"Examples:\n  heed {command}\b")
            self.assertEqual(own, self.succeed(command, "-h"))
            self.assertNotIn("\n\n\n", own)
            self.assertLessEqual(max(map(len, own.splitlines())), 120)

    def test_version(self):
        self.assertTrue(re.fullmatch(r"heed \d+\.\d+\.\d+\n", self.succeed("--version")))

    def test_bad_arguments_are_one_line_and_code_2(self):
        self.refuse(saying="expected a command: " + ", ".join(COMMANDS[:-1]) + " or " + COMMANDS[-1])
        self.refuse("atend", saying="got 'atend'")
        self.refuse("--bogus", saying="--bogus")
        self.refuse("\x1b[31m\n", saying="\\x1b[31m\\x0a")
        needed = {"attend": ["x", "--out", "y"], "explain": ["--shape", "1,1,1,1,1,1"], "size": ["gpt2"], "cache": ["gpt2"]}
        for command in ["attend", "cache", "explain", "patterns", "positions", "serve", "size", "walkthrough"]:
            line = self.refuse(command, *needed.get(command, []), "--bogus", saying="--bogus")
            self.assertTrue(line.startswith(f"heed {command}: "))
        self.refuse("attend", saying="IN is required")
        self.refuse("attend", "x", saying="--out is required")
        self.refuse("attend", "x", "y", "--out", "z", saying="y")
        common = ["attend", "x", "--out", "y"]
        self.refuse(*common, "--causal", "--no-causal", saying="got both")
        self.refuse(*common, "--window", "3", saying="--window: expected two numbers L,R, got '3'")
        self.refuse(*common, "--window", "3,x", saying="got 'x'")
        self.refuse(*common, "--window", "-2,0", saying="--window: expected a whole number from -1")
        self.refuse(*common, "--scale", "nan", saying="--scale: expected a number, got 'nan'")
        self.refuse(*common, "--scale", "1x", saying="got '1x'")
        self.refuse(*common, "--softcap", "-1", saying="--softcap")
        self.refuse(*common, "--dropout", "1", saying="--dropout: expected 0 <= p < 1, got 1")
        self.refuse(*common, "--seed", "18446744073709551616", saying="--seed")
        self.refuse(*common, "--offset", "4294967296", saying="--offset")
        self.refuse(*common, "--align", "left", saying="expected bottom-right or top-left")
        self.refuse(*common, "--threads", "-1", saying="--threads: expected a whole number from 0")
        self.refuse(*common, "--window", saying="--window")
        self.refuse("size", "no-such-model", saying="no-such-model")
        train = ["train", "--task", "copy", "--out", "never-made"]
        self.refuse(*train, "--steps", "-3", saying="--steps: expected 0 to 1099511627776, got -3")
        self.refuse(*train, "--batch", "0", saying="--batch: expected 1 to")
        self.refuse(*train, "--heads", "two", saying="--heads: expected 1 to 1099511627776, got two")
        self.refuse("serve", "--port", "99999", saying="--port: expected a number that fits, got '99999'")
        self.refuse("generate", "x", "y", "--weights", "int3", saying="--weights: expected one of stored, ")

    def test_a_very_long_argument_stays_readable(self):
        line = self.refuse("explain", "--shape", "9" * 100000, saying="999 ...")
        self.assertLess(len(line), 1200)

    def test_a_full_disk_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("needs /dev/full")
        with open("/dev/full", "w") as full:
            result = subprocess.run([HEED, "walkthrough"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "heed walkthrough: cannot write to standard output\n")

    def test_other_commands_work(self):
        self.assertIn("gpt2", run("size", "gpt2").stdout)


if __name__ == "__main__":
    unittest.main()
