"""What a comparison measures: its arms, in the order of measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from harness.config import RunConfig
from harness.ladder import ladder_runs

SPEED_WINDOWS = 8
"""Timed windows of an arm that only measures speed: two more than show a steady state."""
REPEATS = 4
"""Process pairs of a speedup: an even number, so that what the later start is worth cancels."""

Comparison = tuple[str, str]
"""Backend, and variant or ``ladder``: arms whose process pairs are weighed together."""


class Extent(BaseModel):
    """How far a comparison goes beyond one pair of arms a backend."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_sizes: tuple[int, ...] = ()
    image_sizes: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    seeds: int = Field(default=1, ge=1)
    repeats: int = Field(default=REPEATS, ge=1)
    """Process pairs of each pair of arms, further seeds included."""
    ladder: bool = False
    map: bool = False


@dataclass(frozen=True, kw_only=True)
class _Axis:
    field: str
    letter: str
    """Before a number in a variant's name."""
    values: tuple[Any, ...]


def plan(mains: Sequence[RunConfig], extent: Extent) -> list[RunConfig]:
    """Every arm of a comparison.

    All cells are measured once before any is repeated, so that a study that is cut short has
    something to say of each.

    Args:
        mains: the arms of the main comparison, backend by backend.
        extent: what is measured besides.

    Raises:
        pydantic.ValidationError: a value of an axis is out of range.
    """
    if extent.ladder:
        cells = [
            rung
            for _, runs in groupby(mains, key=lambda run: run.backend)
            for rung in ladder_runs(_unvalidated(next(runs)))
        ]
    else:
        cells = [cell for main in mains for cell in _grid(main, extent)]
        # The pairs of a backend stay together, cell by cell.
        place = {together(run): at for at, run in reversed([*enumerate(cells)])}
        cells.sort(key=lambda run: place[together(run)])
    seeded = [
        run.model_copy(update={"seed": run.seed + more, "label": f"seed{run.seed + more}"})
        for more in range(1, extent.seeds)
        for run in _repetition(cells, more)
    ]
    planned = [*cells, *seeded]
    return [*planned, *further_pairs(planned, extent.repeats)]


def further_pairs(
    runs: Sequence[RunConfig], repeats: int, *, of: Collection[Comparison] | None = None
) -> list[RunConfig]:
    """The repetitions that bring comparisons to ``repeats`` process pairs.

    Args:
        runs: that are planned already, further seeds and repetitions included.
        repeats: process pairs of each comparison; one that has them gets no more.
        of: comparisons that are meant; None: all.
    """
    pairs = process_pairs(runs)
    firsts = [run for run in runs if not run.label]
    return [
        _unvalidated(run).model_copy(
            update={"label": f"repeat{number}", "diagnose": False, "trace": False}
        )
        for number in range(1, repeats)
        for run in _repetition(firsts, number)
        if number >= pairs[comparison(run)] and (of is None or comparison(run) in of)
    ]


def _repetition(cells: Sequence[RunConfig], number: int) -> Iterator[RunConfig]:
    for group in in_turn(cells):
        yield from starting_order(group, number)


def starting_order(arms: Sequence[RunConfig], repetition: int) -> list[RunConfig]:
    """Arms that are measured in turn; in every other repetition, from 0, the last starts first.

    A worker that starts later was seen to be faster: the first one takes the scattered pages of
    memory that the last process left, whatever its precision.
    """
    return [*reversed(arms)] if repetition % 2 else [*arms]


def comparison(run: RunConfig) -> Comparison:
    """The comparison that ``run`` belongs to, whichever process pair it is in."""
    return run.backend, "ladder" if run.variant.startswith("rung") else run.variant


def process_pairs(runs: Sequence[RunConfig]) -> Counter[Comparison]:
    """How many process pairs (of a ladder: passes) are planned of each comparison."""
    return Counter(of for of, _ in {together(run) for run in runs})


def together(run: RunConfig) -> tuple[Comparison, str]:
    """What the arms share that are measured in turn: AMP off and on, or all rungs of a ladder."""
    return comparison(run), run.label


def in_turn(runs: Sequence[RunConfig]) -> Iterator[list[RunConfig]]:
    """Split a plan into the groups whose arms are measured in turn."""
    for _, group in groupby(runs, key=together):
        yield [*group]


def speed_only(run: RunConfig) -> RunConfig:
    """``run`` for as long as its speed takes, without regard to what it learns."""
    windows = run.windows or SPEED_WINDOWS
    return run.model_copy(update={"epochs": None, "steps": None, "windows": windows})


def _unvalidated(run: RunConfig) -> RunConfig:
    return speed_only(run).model_copy(update={"validate_weights": False})


def _grid(main: RunConfig, extent: Extent) -> Iterator[RunConfig]:
    """``main`` with every combination of the axes' values; the first keeps the main name."""
    batch_sizes, image_sizes = extent.batch_sizes, extent.image_sizes
    if extent.map:
        main = _unvalidated(main)
        size = main.batch_size
        batch_sizes = batch_sizes or tuple(dict.fromkeys((size, max(2, size // 2), 2 * size)))
        image_sizes = image_sizes or (main.image_size, 2 * main.image_size)
    axes = [
        _Axis(field="model", letter="", values=extent.models or (main.model,)),
        _Axis(field="batch_size", letter="b", values=batch_sizes or (main.batch_size,)),
        _Axis(field="image_size", letter="s", values=image_sizes or (main.image_size,)),
        _Axis(field="input", letter="", values=extent.inputs or (main.input,)),
    ]
    for values in product(*(axis.values for axis in axes)):
        changed = {axis.field: value for axis, value in zip(axes, values, strict=True)}
        names = (
            f"{axis.letter}{value}"
            for axis, value in zip(axes, values, strict=True)
            if value != axis.values[0]
        )
        yield RunConfig.model_validate(main.model_dump() | changed | {"variant": "".join(names)})
