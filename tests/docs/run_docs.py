#!/usr/bin/env python3
"""Runs what the documentation shows. CONTRIBUTING.md ("Documentation that runs") says how a block is written.

    run_docs.py --root ROOT --scratch DIR --compiler CXX FILE.md   runs one file's blocks
    run_docs.py --root ROOT --check-list                           not_run.txt lists only what the documentation holds
    run_docs.py --self-test                                        proves that a wrong block is noticed
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```(\w*)\n(.*?)^```\s*$", re.M | re.S)
SAME_AS = re.compile(r"<!-- same as (\S+) -->\s*$")
TIME_LIMIT = 300


class Wrong(Exception):
    pass


def blocks_of(text):
    """(line number, language, body, file that the block repeats or None)"""
    for match in FENCE.finditer(text):
        same_as = SAME_AS.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        yield line, match.group(1), match.group(2), same_as.group(1) if same_as else None


def commands_of(body):
    """Command lines of an sh block, without comments and with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", body)
    lines = [re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def read_not_run(root):
    path = root / "tests" / "docs" / "not_run.txt"
    entries = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        if line.strip() and not line.startswith("#"):
            command, _, reason = line.partition(" :: ")
            if not reason:
                raise Wrong(f"{path}: no reason for {command}")
            entries[command.strip()] = reason
    return entries


def run_shell(script, folder):
    return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, timeout=TIME_LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_sh(body, folder, not_run):
    commands = commands_of(body)
    skipped = [command for command in commands if command in not_run]
    if skipped and len(skipped) < len(commands):
        raise Wrong(f"a block is run as a whole or not at all; {skipped} is listed in not_run.txt, the rest is not")
    if skipped:
        return "not run: " + "; ".join(not_run[command] for command in skipped)
    result = run_shell(body, folder)
    if result.returncode != 0:
        raise Wrong(f"exit code {result.returncode}:\n{result.stdout}")
    return f"{len(commands)} commands"


def matches(shown, printed):
    """Line by line; a line `...` stands for any number of lines."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(matches(shown[1:], printed[skip:]) for skip in range(len(printed) + 1))
    return bool(printed) and shown[0].rstrip() == printed[0].rstrip() and matches(shown[1:], printed[1:])


def run_console(body, folder):
    count = 0
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        while command.endswith("\\"):
            command = command[:-1] + shown.pop(0).removeprefix("> ")
        result = run_shell(command, folder)
        printed = result.stdout.rstrip("\n").split("\n") if result.stdout.strip() else []
        if not matches(shown, printed):
            raise Wrong(f"$ {command}\nthe document shows\n{chr(10).join(shown)}\nthe command prints\n{result.stdout}")
        count += 1
    if count == 0:
        raise Wrong("a console block has lines that begin with `$ `")
    return f"{count} commands with their output"


def run_cpp(body, folder, compiler, number):
    if "int main" not in body:
        return "a fragment"
    source = folder / f"block_{number}.cc"
    source.write_text(body)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "heed"], check=True, capture_output=True, text=True).stdout
    program = source.with_suffix("")
    for command in ([compiler, "-Wall", "-Wextra", str(source), "-o", str(program), *flags.split()], [str(program)]):
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, cwd=folder)
        if result.returncode != 0:
            raise Wrong(f"{command[0]}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return "a program, compiled and run"


def run_block(root, folder, compiler, not_run, number, language, body, same_as):
    if same_as is not None:
        if (root / same_as).read_text() != body:
            raise Wrong(f"differs from {same_as}")
        return f"same as {same_as}"
    if language == "sh":
        return run_sh(body, folder, not_run)
    if language == "console":
        return run_console(body, folder)
    if language == "cpp":
        return run_cpp(body, folder, compiler, number)
    return "shown only"


def run_document(root, scratch, compiler, document):
    """Every block in one folder, in order, with the tree's folders in sight: later blocks use what earlier ones wrote."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for entry in root.iterdir():
        if not entry.name.startswith(".") and entry.name != "build":
            (scratch / entry.name).symlink_to(entry)
    not_run = read_not_run(root)
    failures = 0
    for line, language, body, same_as in blocks_of(document.read_text()):
        try:
            outcome = run_block(root, scratch, compiler, not_run, line, language, body, same_as)
        except (Wrong, subprocess.SubprocessError, OSError) as error:
            failures += 1
            outcome = f"WRONG: {error}"
        print(f"{document.name}:{line}: {language or 'text'}: {outcome}")
    return failures


def check_list(root):
    shown = set()
    for document in [*root.glob("*.md"), *root.glob("docs/*.md")]:
        for _, language, body, _ in blocks_of(document.read_text()):
            if language == "sh":
                shown.update(commands_of(body))
    stale = sorted(set(read_not_run(root)) - shown)
    for command in stale:
        print(f"tests/docs/not_run.txt: no document shows `{command}`")
    return len(stale)


def self_test():
    cases = [  # text, number of failures
        ("```sh\ntrue\n```\n", 0),
        ("```sh\nfalse\n```\n", 1),
        ("```sh\necho x > file\n```\ntext\n```sh\ngrep x file\n```\n", 0),
        ("```sh\nexpensive thing  # why\n```\n", 0),
        ("```sh\nexpensive thing\ntrue\n```\n", 1),
        ("```console\n$ printf 'a\\nb\\nc\\n'\na\n...\nc\n$ true\n```\n", 0),
        ("```console\n$ printf 'a\\nb\\nc\\n'\na\nc\n```\n", 1),
        ("```console\n$ echo a\n```\n", 1),
        ("```console\necho a\n```\n", 1),
        ("```text\nfalse\n```\n", 0),
        ("```cpp\nint x = ;\n```\n", 0),
        ("<!-- same as twin.cc -->\n```cpp\nint main() {}\n```\n", 0),
        ("<!-- same as twin.cc -->\n```cpp\nint main() { }\n```\n", 1),
    ]
    wrong = 0
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "root"
            (root / "tests" / "docs").mkdir(parents=True)
            (root / "tests" / "docs" / "not_run.txt").write_text("expensive thing :: takes long\n")
            (root / "twin.cc").write_text("int main() {}\n")
            (root / "x.md").write_text(text)
            found = run_document(root, pathlib.Path(folder) / "scratch", "c++", root / "x.md")
        if found != expected:
            wrong += 1
            print(f"self-test: expected {expected} failures, found {found}: {text!r}")
    print(f"self-test: {len(cases)} documents, {wrong} wrong")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", nargs="?", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--compiler", default=os.environ.get("CXX", "c++"))
    parser.add_argument("--check-list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 1 if self_test() else 0
    if arguments.check_list:
        return 1 if check_list(arguments.root) else 0
    return 1 if run_document(arguments.root, arguments.scratch, arguments.compiler, arguments.document) else 0


if __name__ == "__main__":
    sys.exit(main())
