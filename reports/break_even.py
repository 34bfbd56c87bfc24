"""Where AMP pays: its speedup over batch size and image size, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from reports.attribution import RUNGS
from reports.causes import NOT_DETERMINED, causes
from reports.cells import Cell, Results
from reports.comparison import ComparisonRow, comparison_rows
from reports.formats import UNKNOWN, listed

Region = Literal["pays", "slower", "undecided", "no result"]


@dataclass(frozen=True, kw_only=True)
class MapCell:
    """One batch size and image size."""

    variant: str
    """Empty for the study's main settings."""
    batch_size: int
    image_size: int
    """Side, px."""
    row: ComparisonRow

    @property
    def region(self) -> Region:
        """``pays`` and ``slower`` where the deciding interval lies wholly on one side of 1."""
        outcome = self.row.verdict.outcome
        if outcome in ("pays", "slower"):
            return outcome
        return "undecided" if self.row.verdict.speedup is not None else "no result"

    @property
    def diagnosis(self) -> str:
        """What was measured to be the cause, each with its kind; or why there is no ratio.

        Where AMP pays, nothing is missing if no cause is known.
        """
        if self.row.verdict.speedup is None:
            return "; ".join(self.row.gaps) or self.row.verdict.reason
        found = [
            cause.short if cause.short.startswith(cause.kind) else f"{cause.kind}: {cause.short}"
            for cause in causes(self.row.judged)
        ]
        if not found and self.region == "pays":
            return UNKNOWN
        return "; ".join(found) or NOT_DETERMINED.rstrip(".").lower()


@dataclass(frozen=True, kw_only=True)
class BreakEvenMap:
    """The cells of a backend that share everything but batch size and image size."""

    backend: str
    apart: str
    """Model and input, where the study has several maps of a backend; else empty."""
    cells: tuple[MapCell, ...]
    """By image size, then by batch size."""

    @property
    def name(self) -> str:
        """Backend, and what tells its maps apart."""
        return f"{self.backend}, {self.apart}" if self.apart else self.backend

    def break_even(self) -> list[str]:
        """A sentence for each image size: at which batch sizes AMP pays."""
        return [
            f"at {image_size} px AMP pays {_where(self._at(image_size))}"
            for image_size in dict.fromkeys(cell.image_size for cell in self.cells)
        ]

    def _at(self, image_size: int) -> list[MapCell]:
        return [cell for cell in self.cells if cell.image_size == image_size]


def compared_cells(results: Results) -> dict[tuple[str, str, str], list[MapCell]]:
    """Backend, model and input → a cell for each batch and image size that was planned."""
    groups: dict[tuple[str, str, str], list[MapCell]] = {}
    for variant in dict.fromkeys(cell.variant for cell in results.cells):
        if variant in RUNGS:
            continue
        for row in comparison_rows(results.cells, variant):
            of_row = [c for c in results.cells if (c.backend, c.variant) == (row.backend, variant)]
            place = _place(results, of_row)
            if place is not None:
                model, read, batch_size, image_size = place
                cell = MapCell(
                    variant=variant, batch_size=batch_size, image_size=image_size, row=row
                )
                groups.setdefault((row.backend, model, read), []).append(cell)
    return {
        key: sorted(cells, key=lambda cell: (cell.image_size, cell.batch_size))
        for key, cells in groups.items()
    }


def break_even_maps(results: Results) -> list[BreakEvenMap]:
    """The maps of a study: backends with two batch sizes or two image sizes at least."""
    maps = {
        key: cells
        for key, cells in compared_cells(results).items()
        if len({c.batch_size for c in cells}) > 1 or len({c.image_size for c in cells}) > 1
    }
    several = len({key[1:] for key in maps}) > 1
    return [
        BreakEvenMap(
            backend=backend,
            apart=", ".join(filter(None, (model, read))) if several else "",
            cells=tuple(cells),
        )
        for (backend, model, read), cells in maps.items()
    ]


def _where(cells: list[MapCell]) -> str:
    """Of cells by batch size: the batch sizes at which AMP pays, in words."""
    paying = [cell.batch_size for cell in cells if cell.region == "pays"]
    sizes = [cell.batch_size for cell in cells]
    if not paying:
        return "at none of the batch sizes"
    if len(sizes) > 1 and paying == sizes:
        return f"at all batch sizes, {sizes[0]} to {sizes[-1]}"
    if len(paying) > 1 and paying == sizes[-len(paying) :]:
        return f"from batch size {paying[0]} on"
    return f"at batch size {listed([str(size) for size in paying])}"


def _place(results: Results, cells: Iterable[Cell]) -> tuple[str, str, int, int] | None:
    """Model, input, batch size and image size: of a record, or as planned; None if unknown."""
    for cell in cells:
        record = cell.record
        if record is not None and record.training is not None:
            model = record.model.name if record.model is not None else ""
            training = record.training
            return model, training.input, training.batch_size, training.image_size
    planned = results.study.arms if results.study is not None else []
    names = {(cell.backend, cell.variant) for cell in cells}
    for arm in planned:
        if (arm.get("backend"), arm.get("variant") or "") in names:
            return _planned_place(arm)
    return None


def _planned_place(arm: dict[str, Any]) -> tuple[str, str, int, int] | None:
    batch_size, image_size = arm.get("batch_size"), arm.get("image_size")
    if not isinstance(batch_size, int) or not isinstance(image_size, int):
        return None
    return str(arm.get("model") or ""), str(arm.get("input") or ""), batch_size, image_size
