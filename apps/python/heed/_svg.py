"""Small SVG pictures of matrices: no plotting library, nothing loaded from anywhere."""

from __future__ import annotations

import html
import math
from typing import Any, Optional, Sequence

_DARK = (8, 48, 107)


def shade(share: float) -> str:
    """White for 0, dark blue for 1; the square root spreads small weights."""
    t = math.sqrt(min(max(share, 0.0), 1.0))
    return "#" + "".join(f"{round(255 + (end - 255) * t):02x}" for end in _DARK)


def number(value: float) -> str:
    if math.isinf(value):
        return "-\u221e" if value < 0 else "\u221e"
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.1e}"


def heat_map(
    matrix: Sequence[Sequence[float]],
    *,
    largest: Optional[float] = None,
    width: int = 256,
    caption: str = "",
) -> str:
    """Cells without numbers, for maps of any size: rows are queries, columns are keys, darker is more weight."""
    rows, columns = len(matrix), len(matrix[0]) if len(matrix) else 0
    if not rows or not columns:
        return "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>"
    top = largest if largest is not None else max((x for row in matrix for x in row if not math.isnan(x)), default=1.0)
    top = top or 1.0
    height = max(1, round(width * rows / columns))
    label = 16 if caption else 0
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height + label}' "
        f"viewBox='0 0 {width} {height + label}' role='img'>"
    ]
    if caption:
        parts.append(f"<text x='0' y='12' font-size='12' font-family='sans-serif'>{html.escape(caption)}</text>")
    parts.append(
        f"<svg x='0' y='{label}' width='{width}' height='{height}' viewBox='0 0 {columns} {rows}' "
        "preserveAspectRatio='none' shape-rendering='crispEdges'>"
    )
    parts.append(f"<rect width='{columns}' height='{rows}' fill='#ffffff'/>")
    for r, row in enumerate(matrix):
        for c, x in enumerate(row):
            if math.isnan(x):
                parts.append(f"<rect x='{c}' y='{r}' width='1' height='1' fill='#d62728'><title>NaN</title></rect>")
            elif x > 0:
                parts.append(f"<rect x='{c}' y='{r}' width='1' height='1' fill='{shade(x / top)}'/>")
    parts.append("</svg>")
    parts.append(
        f"<rect x='0.5' y='{label + 0.5}' width='{width - 1}' height='{height - 1}' fill='none' "
        "stroke='#999999'/></svg>"
    )
    return "".join(parts)


def table(
    matrix: Sequence[Sequence[float]], *, shaded: bool = False, hidden: Optional[Sequence[Sequence[Any]]] = None
) -> str:
    """Cells with their numbers, for small matrices; `hidden` crosses out what a query may not see."""
    lines = []
    for r, row in enumerate(matrix):
        cells = []
        for c, x in enumerate(row):
            style = "padding:1px 8px;text-align:right;border:1px solid #ddd;font-family:monospace;"
            if hidden is not None and hidden[r][c]:
                style += "color:#bbb;background:#f4f4f4;"
            elif shaded and not math.isnan(x):
                style += f"background:{shade(x)};color:{'#fff' if x > 0.3 else '#000'};"
            cells.append(f"<td style='{style}'>{number(x)}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return (
        "<table style='border-collapse:collapse;display:inline-table;margin:4px 12px 4px 0'>"
        + "".join(lines)
        + "</table>"
    )
