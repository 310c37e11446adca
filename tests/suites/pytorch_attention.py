"""PyTorch's own tests of attention (test/test_transformers.py of a checkout) on the CPU, with
heed.torch.scaled_dot_product_attention in the place of PyTorch's function.

    python tests/suites/pytorch_attention.py PATH_OF_PYTORCH [-k EXPRESSION] [--stride N]

Those that fail with heed run once more as they are, in a process of its own. What then passes and is not named below with
a reason is heed's mistake: the exit code is 1 where there is one. --stride runs one in N of the tests that are only
parameters of one function.
"""

import argparse
import collections
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# name: why heed need not pass. These ask which of its own back ends PyTorch chose, or for the bits of its dropout.
EXEMPT: dict[str, str] = {
    "test_scaled_dot_product_attention_batch_size_*_dropout_p_0_[25]_cpu": "the bits of PyTorch's dropout",
    "test_script_*": "TorchScript, which translates PyTorch's own function only",
    "test_transformerencoderlayer_subclass*": "TorchScript, which translates PyTorch's own function only",
}


class Outcomes:
    """A plugin of pytest: what came of each test."""

    def __init__(self, only, stride):
        self.only, self.stride = only, stride
        self.of = {}
        self.why = {}

    def pytest_collection_modifyitems(self, items):
        if self.only is not None:
            items[:] = [item for item in items if item.nodeid.split("::", 1)[1] in self.only]
        seen = collections.Counter()
        for item in list(items):
            function = item.name.partition("_batch_size")[0].partition("_type_")[0]
            seen[function] += 1
            if seen[function] % self.stride != 1 % self.stride:
                items.remove(item)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.split("::", 1)[1]
            self.of[name] = report.outcome
            if report.outcome == "failed":
                self.why[name] = str(report.longrepr)[-1500:]


def run_tests(file, arguments):
    import pytest

    if arguments.one == "heed":
        import heed.torch
        import torch

        torch.nn.functional.scaled_dot_product_attention = heed.torch.scaled_dot_product_attention
    result = pathlib.Path(arguments.result)
    only = set(json.loads(result.read_text())) if result.exists() else None
    outcomes = Outcomes(only, arguments.stride)
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "--no-header", "--no-summary", "-W", "ignore"]
    options += ["-k", arguments.expression] if arguments.expression else []
    pytest.main([str(file), *options], plugins=[outcomes])
    result.write_text(json.dumps([outcomes.of, outcomes.why]))


def outcomes(arguments, who, only=None):
    """{test: what came of it}, {test: why}."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "outcomes.json"
        stride = arguments.stride
        if only is not None:
            result.write_text(json.dumps(only))
            stride = 1
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(x for x in sys.path if x)}
        command = [sys.executable, __file__, str(arguments.checkout.resolve()), "--one", who, "--result", str(result)]
        command += ["--stride", str(stride), "-k", arguments.expression]
        with open(arguments.log, "ab") as log:
            subprocess.run(command, env=environment, cwd=folder, stdout=log, stderr=log, check=False)
        return json.loads(result.read_text())


def exempt(name):
    test = name.split("::")[-1]
    return next((why for pattern, why in EXEMPT.items() if fnmatch.fnmatch(test, pattern)), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("-k", dest="expression", default="")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--log", default=os.devnull, help="where pytest says how far it is")
    parser.add_argument("--one", choices=("heed", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    file = arguments.checkout.resolve() / "test" / "test_transformers.py"
    if not file.exists():
        parser.error(f"{file}: expected PyTorch's tests, got no such file")
    if arguments.one:
        return run_tests(file, arguments)
    ours, why = outcomes(arguments, "heed")
    failed = [name for name, outcome in ours.items() if outcome == "failed"]
    theirs, _ = outcomes(arguments, "torch", failed) if failed else ({}, {})
    lost = [name for name in failed if theirs.get(name) == "passed"]
    wrong = [name for name in lost if not exempt(name)]
    for name in wrong:
        print(f"{name}\n{why[name]}\n")
    for name in sorted(set(lost) - set(wrong)):
        print(f"{name}: not asked of heed: {exempt(name)}")
    counts = collections.Counter(ours.values())
    print(
        f"{len(ours)} tests with heed: {counts['passed']} pass, {counts['skipped']} are skipped (other devices, mostly), "
        f"{len(failed) - len(lost)} fail with PyTorch too, {len(lost) - len(wrong)} are about PyTorch's own choices, "
        f"{len(wrong)} fail"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
