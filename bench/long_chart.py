"""Curves of the "long" sections as SVG: one picture a part, made of the rows that heed_bench_long printed."""

import math
from html import escape

from chart import COLOURS, FONT

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 70, 24, 64, 48
SECOND = "#e4813a"


def _text(x, y, content, size=12, anchor="start", fill="#222", weight="normal"):
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{fill}' "
        f"font-weight='{weight}'>{escape(content)}</text>"
    )


class Axis:
    """Positions along one side, even or by logarithm (base 2)."""

    def __init__(self, values, begin, end, log=False, zero=False):
        self.log, self.begin, self.end = log, begin, end
        low, high = (0 if zero else min(values)), max(values)
        if log:
            self.low, self.high = math.floor(math.log2(low)), math.ceil(math.log2(high))
        else:
            # Numbers of tokens end at a power of two, others at a round number.
            power = high > 1 and math.log2(high) == int(math.log2(high))
            step = 10 ** math.floor(math.log10(high or 1))
            self.low, self.high = low, high if power else step * math.ceil(high / step)
            self.parts = 4 if power else 5
        self.high = max(self.high, self.low + 1)

    def at(self, value):
        share = ((math.log2(value) if self.log else value) - self.low) / (self.high - self.low)
        return self.begin + (self.end - self.begin) * share

    def ticks(self):
        if self.log:
            step = max(1, (self.high - self.low) // 6)
            return [2.0**n for n in range(self.low, self.high + 1, step)]
        return [self.low + (self.high - self.low) * n / self.parts for n in range(self.parts + 1)]


def label(value):
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:.0f}k" if value < 1 << 20 else f"{value / (1 << 20):g}M"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def curves(title, subtitle, x_name, y_name, series, x_log=False, y_log=False, joined=True):
    """series: [(name, colour, [(x, y)])]; the y axis starts at 0 unless it is logarithmic."""
    xs = [x for _, _, points in series for x, _ in points]
    ys = [y for _, _, points in series for _, y in points]
    across = Axis(xs, LEFT, WIDTH - RIGHT, x_log, zero=not x_log)
    up = Axis(ys, HEIGHT - BOTTOM, TOP, y_log, zero=not y_log)
    shapes = []
    for tick in across.ticks():
        x = across.at(tick)
        shapes.append(f"<line x1='{x:.1f}' y1='{TOP}' x2='{x:.1f}' y2='{HEIGHT - BOTTOM}' stroke='#e4e4e4'/>")
        shapes.append(_text(x, HEIGHT - BOTTOM + 16, label(tick), 11, "middle", "#555"))
    for tick in up.ticks():
        y = up.at(tick)
        shapes.append(f"<line x1='{LEFT}' y1='{y:.1f}' x2='{WIDTH - RIGHT}' y2='{y:.1f}' stroke='#e4e4e4'/>")
        shapes.append(_text(LEFT - 8, y + 4, label(tick), 11, "end", "#555"))
    legend = LEFT
    for name, colour, points in series:
        places = [(across.at(x), up.at(y)) for x, y in points]
        if joined or name.startswith("="):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            shapes.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        if not name.startswith("="):
            shapes += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in places]
        name = name.lstrip("=")
        shapes.append(f"<rect x='{legend}' y='{TOP - 18}' width='12' height='12' fill='{colour}'/>")
        shapes.append(_text(legend + 17, TOP - 8, name, 12))
        legend += 40 + 7 * len(name)
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' "
            f"viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>",
            f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
            _text(16, 22, title, 15, weight="bold"),
            _text(16, 38, subtitle, 11, fill="#555"),
            *shapes,
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name, 12, "middle", "#555"),
            f"<g transform='translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)'>"
            + _text(0, 0, y_name, 12, "middle", "#555")
            + "</g>",
            "</svg>",
            "",
        ]
    )


def _points(rows, x_of, figure):
    return [(x_of(row["case"]), row["figures"][figure]) for row in rows if row["figures"].get(figure)]


def _number(text):
    return float("".join(c for c in text if c.isdigit()))


def _length(rows, subtitle):
    rows = [row for row in rows if row["case"].startswith("T=")]
    series = [
        ("linear attention", COLOURS["heed"], _points(rows, _number, "ns/token")),
        ("softmax attention (attend)", SECOND, _points(rows, _number, "softmax ns/token")),
    ]
    return curves(
        "Linear and softmax attention against the length", subtitle, "tokens", "ns a token and head", series, True, True
    )


def _sparse(rows, subtitle):
    shares = {"forward": [], "backward": []}
    for row in rows:
        figures = row["figures"]
        shares["backward" if "backward" in row["section"] else "forward"].append((figures["blocks %"], figures["time %"]))
    series = [
        ("=time in proportion", "#9a9a9a", [(4, 4), (100, 100)]),
        ("forward", COLOURS["heed"], shares["forward"]),
        ("backward", SECOND, shares["backward"]),
    ]
    return curves(
        "Mask patterns: time against the blocks visited", subtitle, "blocks visited, % of dense", "time, % of dense",
        series, True, True, joined=False,
    )  # fmt: skip


def _infini(rows, subtitle):
    series = [("Infini-attention, segments of 2048", COLOURS["heed"], _points(rows, _number, "ns/token"))]
    return curves(
        "Infini-attention over a million tokens", subtitle, "tokens seen", "ns a token and head", series
    )


def _mla(rows, subtitle):
    series = [
        ("absorbed", COLOURS["heed"], _points(rows, _number, "absorbed ms")),
        ("expanded", SECOND, _points(rows, _number, "expanded ms")),
    ]
    return curves("MLA: one query against a cache", subtitle, "keys", "ms", series, True, True)


PICTURES = {"length": _length, "sparse": _sparse, "infini": _infini, "mla": _mla}


def draw(part, rows, subtitle):
    """The picture of a part, or None where it has none."""
    return PICTURES[part](rows, subtitle) if part in PICTURES else None
