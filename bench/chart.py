"""A chart of percent of the limit, one bar a software, as SVG written by hand: nothing to install to draw it."""

from html import escape

from report import cost_over_base

COLOURS = {  # heed stands out; the others keep apart by lightness as well as by hue
    "heed": "#0b6e4f",
    "torch": "#e4813a",
    "onnxruntime": "#5b7fb5",
    "blocked": "#9a9a9a",
    "naive": "#cfcfcf",
}
LABELS = {
    "heed": "heed",
    "torch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "blocked": "blocked GEMM",
    "naive": "naive",
}
WIDTH, LEFT, RIGHT, BAR, GAP, CASE_GAP, SECTION = 1000, 230, 190, 13, 2, 13, 38
MARK = "stroke='#b3001b' stroke-width='1.6' stroke-dasharray='4 2'"  # a bar of heed's
FONT = "font-family='Helvetica, Arial, DejaVu Sans, sans-serif'"


def _text(x, y, content, size=12, anchor="start", fill="#222", weight="normal"):
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{fill}' "
        f"font-weight='{weight}' paint-order='stroke' stroke='white' stroke-width='2.5'>{escape(content)}</text>"
    )


def _sections(results):
    """{section: {case key: [results]}} of what belongs in a chart of percentages: plain cases with a figure."""
    sections = {}
    for result in results:
        if result.ok and not result.case.group:
            sections.setdefault(result.case.section, {}).setdefault(result.case.key, []).append(result)
    return sections


def _costs(results, y):
    """What options cost heed: 1 is the plain case of the same section, per visible tile. Shapes, and the y below."""
    rows = [(r.case, cost_over_base(r, results)) for r in results if r.software == "heed" and r.case.base]
    rows = [(case, cost) for case, cost in rows if cost]
    if not rows:
        return [], y
    longest = max(2.0, *(cost for _, cost in rows))

    def x_of(cost):
        return LEFT + (WIDTH - LEFT - RIGHT) * cost / longest

    y += SECTION - 16
    shapes = [_text(16, y, "heed: cost over the plain case, per visible tile (shorter is better)", 15, weight="bold")]
    section = ""
    for case, cost in rows:
        if case.section != section:
            section = case.section
            y += 22
            shapes.append(_text(LEFT, y, section, 12, fill="#555"))
            y += 6
        shapes.append(_text(LEFT - 10, y + BAR - 2.5, case.name, 12, "end"))
        shapes.append(
            f"<rect x='{LEFT}' y='{y:.1f}' width='{x_of(cost) - LEFT:.1f}' height='{BAR}' fill='{COLOURS['heed']}'/>"
        )
        for value, style in ((1, "stroke='white' stroke-width='1'"), (case.cost_bar, MARK)):
            x = x_of(value)
            shapes.append(f"<line x1='{x:.1f}' y1='{y - 1:.1f}' x2='{x:.1f}' y2='{y + BAR + 1:.1f}' {style}/>")
        x = x_of(max(cost, case.cost_bar)) + 6
        shapes.append(_text(x, y + BAR - 2.5, f"{cost:.2f}", 11, fill="#0b4f3a", weight="bold"))
        y += BAR + 5
    return shapes, y


def draw(results, title, subtitle):
    sections = _sections(results)
    plot = WIDTH - LEFT - RIGHT
    highest = max((r.percent for cases in sections.values() for rows in cases.values() for r in rows), default=100)
    top_percent = max(100, 10 * -(-int(highest) // 10))

    def x_of(percent):
        return LEFT + plot * percent / top_percent

    shapes, y = [], 96.0
    for section, cases in sections.items():
        y += SECTION - 16
        shapes.append(_text(16, y, section, 15, weight="bold"))
        y += 10
        begin = y
        bars, marks, labels = [], [], []
        for rows in cases.values():
            case = rows[0].case
            middle = y + len(rows) * (BAR + GAP) / 2
            labels.append(_text(LEFT - 10, middle, case.name, 12, "end"))
            labels.append(_text(LEFT - 10, middle + 13, ", ".join(map(str, case.shape)), 10, "end", "#777"))
            case_top = y
            others = [r for r in rows if r.software != "heed"]
            for result in rows:
                heed = result.software == "heed"
                length = max(x_of(result.percent) - LEFT, 1)
                bars.append(
                    f"<rect x='{LEFT}' y='{y:.1f}' width='{length:.1f}' height='{BAR}' "
                    f"fill='{COLOURS.get(result.software, '#888')}'><title>{escape(LABELS[result.software])}: "
                    f"{result.median * 1e3:.4g} ms</title></rect>"
                )
                label = f"{result.percent:.0f} %" if result.percent >= 9.5 else f"{result.percent:.1f} %"
                if heed and others:
                    best = min(others, key=lambda other: other.median)
                    label += f",  {result.times_as_fast_as(best):.2f} x the best other"
                labels.append(
                    _text(LEFT + length + 5, y + BAR - 2.5, label, 11, fill="#0b4f3a" if heed else "#666",
                          weight="bold" if heed else "normal")
                )  # fmt: skip
                y += BAR + GAP
            if case.bar:
                x = x_of(case.bar)
                marks.append(
                    f"<line x1='{x:.1f}' y1='{case_top - 3:.1f}' x2='{x:.1f}' y2='{y + 1:.1f}' {MARK}/>"
                )
            y += max(CASE_GAP, 30 - len(rows) * (BAR + GAP))
        grid = []
        for percent in range(0, top_percent + 1, 20):
            x = x_of(percent)
            colour = "#999" if percent in (0, 100) else "#e4e4e4"
            grid.append(f"<line x1='{x:.1f}' y1='{begin - 4}' x2='{x:.1f}' y2='{y - 4}' stroke='{colour}'/>")
            grid.append(_text(x, y + 8, f"{percent} %", 10, "middle", "#777"))
        shapes += grid + bars + marks + labels
        y += 14

    costs, y = _costs(results, y)
    shapes += costs

    legend, x = [], 16
    present = {r.software for cases in sections.values() for rows in cases.values() for r in rows}
    for software in (name for name in COLOURS if name in present):
        legend.append(f"<rect x='{x}' y='66' width='14' height='14' fill='{COLOURS[software]}'/>")
        legend.append(_text(x + 20, 77.5, LABELS[software], 12, weight="bold" if software == "heed" else "normal"))
        x += 44 + 7 * len(LABELS[software])
    legend.append(f"<line x1='{x + 4}' y1='64' x2='{x + 4}' y2='82' {MARK}/>")
    legend.append(_text(x + 12, 77.5, "what heed is to reach"))
    height = y + 16
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height:.0f}' "
            f"viewBox='0 0 {WIDTH} {height:.0f}' {FONT}>",
            f"<rect width='{WIDTH}' height='{height:.0f}' fill='white'/>",
            _text(16, 28, title, 19, weight="bold"),
            _text(16, 48, subtitle, 12, fill="#555"),
            *legend,
            *shapes,
            "</svg>",
            "",
        ]
    )
