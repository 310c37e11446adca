"""The table for people and the CSV for programs."""

import csv
import itertools

COLUMNS = (
    "date", "machine", "threads", "section", "case", "B", "H", "G", "T", "S", "D", "dtype", "pass", "options",
    "software", "version", "status", "median_ms", "min_ms", "max_ms", "rounds", "iterations", "rate", "rate_unit",
    "limit", "percent_of_limit", "times_best_other", "cost_over_base", "error", "kernel",
)  # fmt: skip


def best_other(result, results):
    """The fastest other software on the same case, or None."""
    others = [
        other for other in results if other.ok and other.software != result.software and other.case is result.case
    ]
    return min(others, key=lambda other: other.median, default=None)


def times_best_other(result, results):
    """How many times as fast as the fastest other software; None where there is no other."""
    other = best_other(result, results)
    return result.times_as_fast_as(other) if other and result.ok else None


def cost_over_base(result, results):
    """Time over that of the plain case in the same software, per visible tile; None where there is no base."""
    if not result.case.base or not result.ok:
        return None
    for base in results:
        same_group = base.case.group == result.case.group and base.software == result.software
        if same_group and base.case.name == result.case.base and base.ok:
            return base.times_as_fast_as(result) / (result.case.visible_tiles() / base.case.visible_tiles())
    return None


def unit(case):
    return "GB/s" if case.limit == "read" else "GFLOP/s"


def milliseconds(seconds):
    value = seconds * 1e3
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 4
    return f"{value:.{digits}f}"


def _verdict(value, bar, what, at_most=False):
    """The bar beside a figure of heed's, and whether it was met."""
    if not bar or value is None:
        return ""
    met = value <= bar if at_most else value >= bar
    return f"{'<=' if at_most else '>='} {bar:g} {what} {'ok' if met else 'NO'}"


def table_rows(results):
    """One row of cells a result, for one section."""
    for result in results:
        case = result.case
        shape = ",".join(map(str, case.shape))
        head = [case.name, shape, case.dtype, "backward" if case.backward else "forward", result.software]
        if not result.ok:
            yield head + [result.status]
            continue
        heed = result.software == "heed"
        cost = cost_over_base(result, results)
        ratio = times_best_other(result, results) if heed else None
        bars = [
            _verdict(result.percent, case.bar, "%"),
            _verdict(ratio, case.ratio_bar, "x"),
            _verdict(cost, case.cost_bar, "cost", at_most=True),
        ]
        yield head + [
            milliseconds(result.median),
            f"{milliseconds(min(result.seconds))}..{milliseconds(max(result.seconds))}",
            f"{result.rate:.1f} {unit(case)}",
            f"{result.percent:.0f} %",
            f"{ratio:.2f} x" if ratio else "",
            f"{cost:.2f}" if cost else "",
            "  ".join(bar for bar in bars if bar) if heed else "",
        ]


HEAD = [
    "case", "B,H,G,T,S,D", "dtype", "pass", "software", "median ms", "min..max", "rate", "of limit", "vs best", "cost",
    "bars",
]  # fmt: skip
NAMES = 5  # columns that say what was measured
NOISY = 0.1  # spread of the limit above which the figures of a section deserve a warning
LEFT = {*range(NAMES), len(HEAD) - 1}


def format_table(section, results, bold=False):
    """Aligned lines; the rows of one case stand together, its name on the first of them."""
    rows = list(table_rows(results))
    measured = [row for row in rows if len(row) == len(HEAD)]
    widths = [max(len(row[c]) for row in [HEAD, *(rows if c < NAMES else measured)]) for c in range(len(HEAD))]

    def line(cells):
        padded = [cell.ljust(w) if c in LEFT else cell.rjust(w) for c, (cell, w) in enumerate(zip(cells, widths))]
        return "  ".join(padded)

    lines = ["", section, line(HEAD).rstrip(), line(["-" * w for w in widths])]
    for _, same in itertools.groupby(rows, key=lambda row: row[: NAMES - 1]):
        for n, row in enumerate(same):
            cells = row if n == 0 else [""] * (NAMES - 1) + row[NAMES - 1 :]
            text = line(cells).rstrip() if len(row) == len(HEAD) else line(cells[:NAMES]) + "  " + row[NAMES]
            lines.append(f"\033[1m{text}\033[0m" if bold and row[NAMES - 1] == "heed" else text)
    limits = [result.limit_rate for result in results if result.ok]
    if limits:
        low, high = min(limits), max(limits)
        span = f"{low:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"
        kind = {"read": "plain read loop", "compute": "multiply-add peak"}[results[0].case.limit]
        lines[1] += f"   limit: {kind} in the same rounds, {span} {unit(results[0].case)}"
        drift = max((max(r.limits) - min(r.limits)) / r.limit_rate for r in results if r.ok)
        if drift > NOISY:
            lines[1] += f"\n  noisy: the limit itself moved by {100 * drift:.0f} % between rounds; is the machine idle?"
    return "\n".join(lines)


def _number(value, digits=6):
    return "" if value is None or value != value else f"{value:.{digits}g}"


def write_csv(path, results, date, machine, threads):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for result in results:
            case = result.case
            options = " ".join(f"{name}={value}" for name, value in sorted(case.options.items()))
            figures = [""] * 9
            if result.ok:
                figures = [
                    *(_number(f(result.seconds) * 1e3) for f in (lambda _: result.median, min, max)),
                    len(result.seconds), result.iterations, _number(result.rate), unit(case),
                    _number(result.limit_rate), _number(result.percent, 4),
                ]  # fmt: skip
            writer.writerow([
                date, machine, threads, case.section, case.name, *case.shape, case.dtype,
                "backward" if case.backward else "forward", options, result.software, result.version, result.status,
                *figures, _number(times_best_other(result, results), 4), _number(cost_over_base(result, results), 4),
                _number(result.error, 3), result.note,
            ])  # fmt: skip
