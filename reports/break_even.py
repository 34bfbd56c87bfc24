"""Where AMP pays: its speedup over batch size and image size, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from reports.attribution import RUNGS
from reports.causes import NOT_DETERMINED, causes
from reports.cells import Cell, Results
from reports.comparison import ComparisonRow, comparison_rows
from reports.formats import UNKNOWN, listed

Region = Literal["pays", "slower", "no difference", "undecided", "no result"]

_IN_WORDS: Final[Mapping[Region, str]] = {
    "pays": "pays at {}",
    "slower": "is slower at {}",
    "no difference": "makes no difference at {}",
    "undecided": "is not shown to pay at {} (undecided)",
    "no result": "has no result at {}",
}
_MOST_SENTENCES: Final = 6
"""Break-evens that are told one by one; of more, only how many settings fall into each region."""


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
    def name(self) -> str:
        """Batch size × image size."""
        return f"{self.batch_size} × {self.image_size} px"

    @property
    def verdict(self) -> str:
        """The verdict's word, and what would settle it where it is too noisy."""
        verdict = self.row.verdict
        return f"{verdict.outcome}: {verdict.remedy}" if verdict.remedy else verdict.outcome

    @property
    def region(self) -> Region:
        """The verdict's word; ``undecided`` where the windows or pairs are too few for one."""
        outcome = self.row.verdict.outcome
        if outcome in ("pays", "slower", "no difference"):
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
    """The cells of a backend that share everything but batch size and image size; one or more."""

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
        """A sentence for each image size: what was found at each of the batch sizes measured."""
        return [
            f"at {image_size} px AMP {_found(self._at(image_size))}"
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
        for row in comparison_rows(results.cells, variant, margin=results.margin):
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
    return _maps(
        {
            key: cells
            for key, cells in compared_cells(results).items()
            if len({c.batch_size for c in cells}) > 1 or len({c.image_size for c in cells}) > 1
        }
    )


def compared_settings(results: Results) -> list[BreakEvenMap]:
    """All cells of a study of several settings (sizes, models or inputs); empty for one setting."""
    groups = compared_cells(results)
    several = any(cell.variant for cells in groups.values() for cell in cells)
    return _maps(groups) if several else []


def main_settings(settings: Sequence[BreakEvenMap]) -> str:
    """Which of several settings the tables of single arms show; empty without several."""
    return next(
        (
            ", ".join(filter(None, (found.apart, cell.name)))
            for found in settings
            for cell in found.cells
            if not cell.variant
        ),
        "",
    )


def settings_headline(settings: Sequence[BreakEvenMap]) -> str:
    """What was found at all of several settings; of many, at how many of them."""
    told = [f"{found.name}: {'; '.join(found.break_even())}." for found in settings]
    if sum(len(found.break_even()) for found in settings) <= _MOST_SENTENCES:
        return " ".join(told)
    backends: dict[str, list[MapCell]] = {}
    for found in settings:
        backends.setdefault(found.backend, []).extend(found.cells)
    return " ".join(
        f"{backend}: of {len(cells)} settings AMP {_counted(cells)}."
        for backend, cells in backends.items()
    )


def _maps(groups: Mapping[tuple[str, str, str], Sequence[MapCell]]) -> list[BreakEvenMap]:
    several = len({key[1:] for key in groups}) > 1
    return [
        BreakEvenMap(
            backend=backend,
            apart=", ".join(filter(None, (model, read))) if several else "",
            cells=tuple(cells),
        )
        for (backend, model, read), cells in groups.items()
    ]


def _found(cells: Sequence[MapCell]) -> str:
    """Of cells by batch size: what AMP does at each, in words. Nothing between or beyond them."""
    regions = _by_region(cells).items()
    return listed([_IN_WORDS[region].format(_sizes(some)) for region, some in regions])


def _counted(cells: Sequence[MapCell]) -> str:
    regions = _by_region(cells).items()
    return listed([_IN_WORDS[region].format(len(some)) for region, some in regions])


def _by_region(cells: Sequence[MapCell]) -> dict[Region, list[MapCell]]:
    found: dict[Region, list[MapCell]] = {
        region: [cell for cell in cells if cell.region == region] for region in _IN_WORDS
    }
    return {region: some for region, some in found.items() if some}


def _sizes(cells: Sequence[MapCell]) -> str:
    plural = "s" if len(cells) > 1 else ""
    return f"batch size{plural} {listed([str(cell.batch_size) for cell in cells])}"


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
