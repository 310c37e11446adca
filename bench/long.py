"""Positions and long context: heed_bench_long's rows as tables and CSV."""

import csv
import itertools
import json
import subprocess

# Part of heed_bench_long, and what --case matches after "long: ".
PARTS = {
    "length": "linear attention against the length and softmax",
    "peak": "linear attention against the multiply-add peak",
    "gated": "gated linear attention against the length and the multiply-add peak",
    "rope": "RoPE against the memory",
    "sparse": "sparse patterns against visited blocks",
    "infini": "Infini-attention over a million tokens",
    "mla": "MLA decoding, absorbed against expanded",
}
TIMEOUT = 900  # seconds, of one part


def measure(program, part, threads, rounds, quick):
    """Rows as heed_bench_long prints them, or a sentence that says why there are none."""
    command = [program, part, "--threads", str(threads), "--rounds", str(rounds), *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no result within {TIMEOUT} s"
    if done.returncode != 0:
        return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[0]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def shown(value):
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) < 10 else f"{value:.1f}"


def format_tables(rows):
    """A table for each section, aligned."""
    lines = []
    for section, group in itertools.groupby(rows, key=lambda row: row["section"]):
        group = list(group)
        columns = list(dict.fromkeys(name for row in group for name in row["figures"]))
        cells = [["case", *columns, "bars"]]
        for row in group:
            bar = f"{row['bar']} {'ok' if row['met'] else 'NO'}" if row["bar"] else ""
            cells.append([row["case"], *(shown(row["figures"].get(name)) for name in columns), bar])
        widths = [max(len(line[c]) for line in cells) for c in range(len(cells[0]))]
        lines += ["", section]
        for line in cells:
            padded = [cell.rjust(w) for cell, w in zip(line, widths)]
            padded[0], padded[-1] = line[0].ljust(widths[0]), line[-1]
            lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def write_csv(path, rows, date, machine, threads):
    """One line a figure: the sections have different ones."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("date", "machine", "threads", "section", "case", "figure", "value", "bar", "met"))
        for row in rows:
            for name, value in row["figures"].items():
                asked = row["bar"].startswith(name)
                verdict = (row["bar"], "yes" if row["met"] else "no") if asked else ("", "")
                value = "" if value is None else value
                writer.writerow([date, machine, threads, row["section"], row["case"], name, value, *verdict])
