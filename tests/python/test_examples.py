"""The examples run, and so does every Python block of the documentation."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import heed

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDS = {"replace_sdpa": ["torch"], "train_infini": ["torch"], "transformers_model": ["torch", "transformers"]}
BLOCK = re.compile(r"^```python\n(.*?)^```\s*$", re.M | re.S)
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if BLOCK.search(page.read_text())]


def run(script, folder):
    # One thread for PyTorch: its spinning threads and other tests get in each other's way.
    where = str(pathlib.Path(heed.__file__).resolve().parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": where}
    result = subprocess.run(
        [sys.executable, "-B", str(script)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "python").glob("*.py")), ids=lambda path: path.stem)
def test_example(path, tmp_path):
    for package in NEEDS.get(path.stem, []):
        pytest.importorskip(package)
    assert run(path, tmp_path).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation(page, tmp_path):
    blocks = BLOCK.findall(page.read_text())
    if any("torch" in block for block in blocks):
        pytest.importorskip("torch")
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    for folder in ("tests", "examples"):  # as the other blocks of a page see the tree
        (tmp_path / folder).symlink_to(ROOT / folder)
    run(script, tmp_path)


def test_the_documentation_is_found():
    assert ROOT / "docs" / "python.md" in PAGES and ROOT / "README.md" in PAGES


def test_command_line():
    """`make test` names the program it built; with a wheel it lies beside the interpreter."""
    program = os.environ.get("HEED") or pathlib.Path(sys.executable).parent / "heed"
    if not pathlib.Path(program).exists():
        pytest.skip("no command line was built")
    version = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    assert heed.__version__ in version
    walk = subprocess.run([str(program), "walkthrough"], capture_output=True, text=True, check=True).stdout
    assert "0.7311" in walk or "0.73" in walk
