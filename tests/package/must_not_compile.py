#!/usr/bin/env python3
"""must_not_compile.py COMPILER INCLUDE_DIR FILE: see the first lines of FILE."""
import re
import subprocess
import sys


def first_lines(text):
    return "\n".join(text.splitlines()[:12])


compiler, include, path = sys.argv[1:]
preamble, *parts = re.split(r"^// (?=(?:refused|accepted): )", open(path).read(), flags=re.M)
failures = refused = 0
for part in parts:
    head, body = part.split("\n", 1)
    kind, name, *text = head.split(": ")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", "-x", "c++", "-"]
    result = subprocess.run(command, input=preamble + body, capture_output=True, text=True)
    compiles = result.returncode == 0
    refused += kind == "refused"
    # Compilers word their messages differently; the text is GCC's.
    worded = compiler.rsplit("/", 1)[-1].startswith("clang") or kind == "accepted" or text[0] in result.stderr
    if compiles != (kind == "accepted") or not worded:
        failures += 1
        print(f"{name}: should be {kind}, but " + ("compiles" if compiles else f"the compiler says\n{first_lines(result.stderr)}"))
print(f"{len(parts)} programs, {refused} of them to be refused, {failures} wrong")
sys.exit(1 if failures or not refused or refused == len(parts) else 0)
