"""PyTorch's own tests of attention (test/test_transformers.py of a checkout) on the CPU, with
heed.torch.scaled_dot_product_attention in the place of PyTorch's function.

    python tests/suites/pytorch_attention.py PATH_OF_PYTORCH [-k EXPRESSION]

Every test runs twice, in processes of their own: as it is, and with heed. Those that fail with heed alone and are not
named below with a reason are heed's mistakes: the exit code is 1 where there is one.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# name: why heed need not pass. These ask which of its own back ends PyTorch chose, or for the bits of its dropout.
EXEMPT: dict[str, str] = {}


class Outcomes:
    """A plugin of pytest: what came of each test."""

    def __init__(self):
        self.of = {}
        self.why = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.of[report.nodeid] = report.outcome
            if report.outcome == "failed":
                self.why[report.nodeid] = str(report.longrepr)[-1500:]


def run_tests(file, expression, with_heed, result):
    import pytest

    if with_heed:
        import heed.torch
        import torch

        torch.nn.functional.scaled_dot_product_attention = heed.torch.scaled_dot_product_attention
    outcomes = Outcomes()
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "--no-header", "--no-summary", "-W", "ignore"]
    pytest.main([str(file), *options, *(["-k", expression] if expression else [])], plugins=[outcomes])
    pathlib.Path(result).write_text(json.dumps([outcomes.of, outcomes.why]))


def outcomes(file, expression, with_heed):
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "outcomes.json"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(x for x in sys.path if x), "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}
        command = [sys.executable, __file__, str(file.parents[1]), "--one", "heed" if with_heed else "torch"]
        command += ["--result", str(result), *(["-k", expression] if expression else [])]
        subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        return json.loads(result.read_text())


def exempt(name):
    test = name.split("::")[-1]
    return next((why for pattern, why in EXEMPT.items() if fnmatch.fnmatch(test, pattern)), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("-k", dest="expression", default="")
    parser.add_argument("--one", choices=("heed", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    file = arguments.checkout.resolve() / "test" / "test_transformers.py"
    if not file.exists():
        parser.error(f"{file}: expected PyTorch's tests, got no such file")
    if arguments.one:
        return run_tests(file, arguments.expression, arguments.one == "heed", arguments.result)
    theirs, _ = outcomes(file, arguments.expression, False)
    ours, why = outcomes(file, arguments.expression, True)
    passed = [name for name in theirs if theirs[name] == "passed"]
    both = [name for name in passed if ours.get(name) == "passed"]
    lost = [name for name in passed if ours.get(name) != "passed"]
    excused = [name for name in lost if exempt(name)]
    wrong = [name for name in lost if not exempt(name)]
    for name in wrong:
        print(f"{name}: {ours.get(name, 'did not run')}\n{why.get(name, '')}\n")
    for name in excused:
        print(f"{name.split('::')[-1]}: not asked of heed: {exempt(name)}")
    skipped = sum(outcome == "skipped" for outcome in theirs.values())
    failed = sum(outcome == "failed" for outcome in theirs.values())
    print(
        f"{len(theirs)} tests: PyTorch passes {len(passed)}, skips {skipped}, fails {failed}; of the {len(passed)}, heed "
        f"passes {len(both)}, {len(excused)} are about PyTorch's own choices, {len(wrong)} fail"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
