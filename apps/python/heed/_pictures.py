"""Results that people look at: a notebook shows them as pictures, print() as text."""

from __future__ import annotations

import html
from typing import Any, Iterator, Sequence

from . import _svg

#: A notebook page stays light: larger maps are shown in part, and say so.
_MAPS_SHOWN = 16
_ROWS_SHOWN = 12


class AttentionMap:
    """Pooled attention weights. `values` is the array [batches, heads, R, C]; a notebook draws one picture a head."""

    def __init__(self, values: Any, queries: int, keys: int, pooling: str) -> None:
        self.values = values
        self.queries = queries
        self.keys = keys
        self.pooling = pooling

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy

        return numpy.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        batches, heads, rows, columns = self.shape
        return (
            f"heed.AttentionMap: {self.pooling} of {self.queries} x {self.keys} weights in {rows} x {columns} cells, "
            f"{batches} batch entries, {heads} heads"
        )

    def svg(self, batch: int = 0, head: int = 0, width: int = 256) -> str:
        """One head as an SVG picture: rows are queries, columns are keys, darker is more weight."""
        caption = f"batch {batch}, head {head}"
        return _svg.heat_map(self.values[batch][head].tolist(), width=width, caption=caption)

    def _repr_html_(self) -> str:
        batches, heads, _, _ = self.shape
        maps = [self.svg(b, h, 160) for b in range(batches) for h in range(heads)][:_MAPS_SHOWN]
        note = f"; the first {_MAPS_SHOWN} of {batches * heads}" if batches * heads > _MAPS_SHOWN else ""
        figures = "".join(f"<span style='display:inline-block;margin:4px'>{svg}</span>" for svg in maps)
        return f"<div><div>{html.escape(repr(self) + note)}</div>{figures}</div>"


class WalkthroughStep:
    """One line of the calculation. `values` is float64, of one batch entry; `shape` that of the whole batch."""

    def __init__(
        self,
        name: str,
        title: str,
        formula: str,
        operands: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        values: Any,
    ) -> None:
        self.name = name
        self.title = title
        self.formula = formula
        self.operands = list(operands)
        self.shape = shape
        self.values = values

    def __repr__(self) -> str:
        return f"{self.name}: {self.formula} {list(self.shape)}"


class Walkthrough:
    """Attention worked out step by step. Steps by name (`w["weights"].values`) or in order (`for step in w`)."""

    def __init__(
        self,
        steps: Sequence[WalkthroughStep],
        batch_entry: int,
        heads: int,
        kv_heads: int,
        scale: float,
        visible: Any,
        kept: Any,
        largest_difference: float,
    ) -> None:
        self.steps = list(steps)
        self.batch_entry = batch_entry
        self.heads = heads
        self.kv_heads = kv_heads
        self.scale = scale
        self.visible = visible
        self.kept = kept
        self.largest_difference = largest_difference

    def __getitem__(self, name: str) -> WalkthroughStep:
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(f"{name}; there are {', '.join(step.name for step in self.steps)}")

    def __iter__(self) -> Iterator[WalkthroughStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"heed.Walkthrough: {len(self)} steps, {self.heads} heads; print() shows them"

    def __str__(self) -> str:
        lines = []
        for count, step in enumerate(self.steps, 1):
            lines.append(f"{count}. {step.title}\n   {step.formula}, {list(step.shape)}")
            for head, matrix in enumerate(self._matrices(step)):
                if len(self._matrices(step)) > 1:
                    lines.append(f"   head {head}")
                for row in matrix[:_ROWS_SHOWN]:
                    cells = " ".join(f"{_svg.number(x):>9}" for x in row[:_ROWS_SHOWN])
                    lines.append("   " + cells + (" ..." if len(row) > _ROWS_SHOWN else ""))
                if len(matrix) > _ROWS_SHOWN:
                    lines.append("   ...")
        return "\n".join(lines)

    @staticmethod
    def _matrices(step: WalkthroughStep) -> list[list[list[float]]]:
        values = step.values.tolist()
        return values if step.values.ndim == 3 else [values]

    def _step_html(self, count: int, step: WalkthroughStep) -> str:
        parts = [f"<p style='margin:10px 0 2px'><b>{count}. {html.escape(step.title)}</b>"]
        parts.append(f" &nbsp; <code>{html.escape(step.formula)}</code> &nbsp; {list(step.shape)}</p>")
        weights = step.name in ("weights", "dropout")
        matrices = self._matrices(step)
        by_key = step.name in ("scores", "scaled", "softcap", "bias", "mask", "weights", "dropout")
        for head, matrix in enumerate(matrices):
            label = f"<div style='font-size:90%'>head {head}</div>" if len(matrices) > 1 else ""
            if len(matrix) > _ROWS_SHOWN or len(matrix[0]) > _ROWS_SHOWN:
                body = _svg.heat_map(matrix) if weights else f"<code>{len(matrix)} x {len(matrix[0])} numbers</code>"
            else:
                hidden = None
                if by_key and step.name in ("mask", "weights", "dropout"):
                    hidden = [[not x for x in row] for row in self.visible[head].tolist()]
                body = _svg.table(matrix, shaded=weights, hidden=hidden)
            parts.append(f"<div style='display:inline-block;vertical-align:top'>{label}{body}</div>")
        return "".join(parts)

    def _repr_html_(self) -> str:
        steps = "".join(self._step_html(count, step) for count, step in enumerate(self.steps, 1))
        return f"<div>{steps}</div>"
