"""Which comparisons of a study are open, for a study that goes on until they are decided."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import Comparison
from harness.records import Record, Study
from reports.attribution import ladders
from reports.cells import Results, study_cells
from reports.comparison import comparison_rows


def undecided(study: Study, records: Sequence[Record]) -> list[Comparison]:
    """The comparisons whose verdict is ``too noisy``; of a ladder, AMP's own step."""
    results = Results(study=study, cells=study_cells(study, records))
    of_ladders = [
        (ladder.backend, "ladder")
        for ladder in ladders(results)
        if ladder.verdict.outcome == "too noisy"
    ]
    variants = dict.fromkeys(cell.variant for cell in results.cells)
    return of_ladders + [
        (row.backend, variant)
        for variant in variants
        for row in comparison_rows(results.cells, variant)
        if row.verdict.outcome == "too noisy"
    ]
