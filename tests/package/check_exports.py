#!/usr/bin/env python3
"""check_exports.py libheed.so: everything the shared library exports is heed's, and nothing of heed's inside is."""
import re
import subprocess
import sys

# RTTI and vtables of exported classes, and of standard templates over heed's types, mention heed:: too.
INSIDE = re.compile(r"heed::(base|ops|reference|cpu|cuda|comm|autograd|detail)::")
PROMISED = ["heed::attend(", "heed::attend_backward(", "heed::explain(", "heed::attention_weights(",
            "heed::attention_statistics(", "heed::attention_map(", "heed::Context::Context("]

output = subprocess.run(["nm", "-DC", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True).stdout
exported = [line.split(" ", 2)[2] for line in output.splitlines()]
foreign = [name for name in exported if "heed::" not in name]
inside = [name for name in exported if INSIDE.match(name)]
absent = [start for start in PROMISED if not any(name.startswith(start) for name in exported)]
for title, names in [("not heed's", foreign), ("not meant for users", inside), ("missing", absent)]:
    for name in names:
        print(f"{title}: {name}")
print(f"{len(exported)} exported symbols")
sys.exit(1 if foreign or inside or absent else 0)
