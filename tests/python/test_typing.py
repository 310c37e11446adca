"""The stubs: complete, in step with what the functions take, and right in the eyes of a type checker."""

import ast
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import heed

PACKAGE = pathlib.Path(heed.__file__).parent
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def stub():
    return ast.parse((PACKAGE / "_core.pyi").read_text())


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_every_name_is_in_the_stub(stub):
    names = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    public = {name for name in dir(heed._core) if not name.startswith("_")}
    assert public == names
    assert "std::" not in ast.unparse(stub)


def test_functions_take_every_keyword_of_their_signature(stub):
    x = np.zeros((1, 1, 2, 2), np.float32)
    checked = 0
    for node in stub.body:
        if not isinstance(node, ast.FunctionDef) or not {"context", "dtype"} & {x.arg for x in node.args.kwonlyargs}:
            continue  # these take keywords one by one; nanobind itself keeps the others in step
        arguments = []
        for argument in node.args.args:
            kind = ast.unparse(argument.annotation)
            arguments.append(
                {
                    "int": 1,
                    "str": "relu",
                    "float": 0.5,
                    "RopeTable": heed.RopeTable([1.0]),
                    "InfiniMemory": heed.InfiniMemory(),
                    "Sequence[tuple[ArrayLike, ArrayLike]]": [],
                    "Sequence[RopeTable]": [heed.RopeTable([1.0])],
                    "Sequence[ArrayLike]": [[0, 1]],
                }.get(kind, x)
            )
        for keyword in node.args.kwonlyargs:
            try:
                getattr(heed, node.name)(*arguments, **{keyword.arg: None})
            except (ValueError, TypeError) as error:
                assert "unexpected keyword" not in str(error) and "incompatible" not in str(error), (
                    f"{node.name}: {error}"
                )
            checked += 1
        with pytest.raises(TypeError, match="unexpected keyword|incompatible"):
            getattr(heed, node.name)(*arguments, nonsense=1)
    assert checked > 200


def test_mypy_agrees():
    pytest.importorskip("mypy")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--cache-dir=/dev/null",
            "--no-incremental",
            str(HERE / "typed_use.py"),
        ],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
    )
    lines = (HERE / "typed_use.py").read_text().splitlines()
    wrong = {n for n, line in enumerate(lines, 1) if line.endswith("# wrong")}
    errors = [line for line in run.stdout.splitlines() if ": error:" in line]
    elsewhere = [
        line for line in errors if not line.startswith(str(HERE / "typed_use.py")) and "typed_use.py" not in line
    ]
    found = {int(line.split(":")[1]) for line in errors if "typed_use.py" in line}
    assert not elsewhere, "\n".join(elsewhere)
    assert found == wrong, run.stdout + run.stderr
