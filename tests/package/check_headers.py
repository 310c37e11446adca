#!/usr/bin/env python3
"""check_headers.py COMPILER INCLUDE_DIR: each public header compiles alone, twice included, without a warning."""
import pathlib
import subprocess
import sys


def first_lines(text):
    return "\n".join(text.splitlines()[:12])


compiler, include = sys.argv[1], pathlib.Path(sys.argv[2])
warnings = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wold-style-cast -Wcast-qual -Wnon-virtual-dtor -Werror".split()
headers = sorted((include / "heed").rglob("*.h"))
failures = 0
for header in headers:
    name = header.relative_to(include)
    source = f"#include <{name}>\n#include <{name}>\n"
    command = [compiler, "-std=c++20", "-fsyntax-only", *warnings, f"-I{include}", "-x", "c++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    if result.returncode != 0:
        failures += 1
        print(f"{name} does not compile on its own:\n{first_lines(result.stderr)}")
print(f"{len(headers)} headers, {failures} wrong")
sys.exit(1 if failures or not headers else 0)
