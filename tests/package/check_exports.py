#!/usr/bin/env python3
"""check_exports.py libheed.so symbols.md [--write]: the shared library exports what the page promises, and nothing internal.

With --write the page's list is made anew, for who has added a function: what disappears from it breaks programs that were linked
with an older library, so that is a new minor version.
"""
import re
import subprocess
import sys

BEGIN, END = "```text\n", "```\n"
# RTTI and vtables of exported classes mention heed:: too.
ABOUT_A_CLASS = re.compile(r"^(typeinfo|typeinfo name|vtable|VTT|guard variable) for ")
INSIDE = re.compile(r"heed::(base|ops|reference|cpu|cuda|comm|autograd|detail)::|::(State|Node)::")


def functions(exported):
    """Names without arguments: overloads count as one. What a program makes of the headers' templates for itself is left out."""
    names = set()
    for name in exported:
        plain = re.sub(r"\[abi:[^]]*\]", "", name)
        head = plain.split("(")[0] if not plain.endswith("operator()") else plain
        if plain.startswith("heed::") and "<" not in head and not ABOUT_A_CLASS.match(plain):
            names.add(head + "()" if head.endswith("operator") else head)
    return sorted(names)


def main():
    library, page = sys.argv[1:3]
    output = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = [line.split(" ", 2)[2] for line in output.splitlines()]
    here = functions(exported)
    text = open(page, encoding="utf-8").read()
    begin = text.index(BEGIN) + len(BEGIN)
    end = text.index(END, begin)
    if sys.argv[3:] == ["--write"]:
        open(page, "w", encoding="utf-8").write(text[:begin] + "".join(name + "\n" for name in here) + text[end:])
        print(f"{len(here)} names in {page}")
        return 0
    promised = text[begin:end].split("\n")[:-1]
    problems = [("not heed's", name) for name in exported if "heed::" not in name]
    problems += [("not meant for users", name) for name in exported if INSIDE.search(name)]
    problems += [("promised, and missing", name) for name in promised if name not in here]
    for title, name in problems:
        print(f"{title}: {name}")
    new = [name for name in here if name not in promised]
    if new:
        print(f"not promised yet ({sys.argv[0]} {library} {page} --write adds them): {', '.join(new)}")
    print(f"{len(exported)} exported symbols, {len(promised)} names promised")
    return 1 if problems else 0


sys.exit(main())
