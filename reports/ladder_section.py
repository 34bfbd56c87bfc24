"""The section on the attribution ladder: one change a rung, and what each adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness.ladder import LADDER
from harness.speedup import Speedup
from reports import formats
from reports.attribution import STRICT, Ladder, RungResult, amp_share
from reports.blocks import Block, Card, Chart, Figure, Paragraph, Section, Table, by_text
from reports.charts import PRECISION_COLOURS
from reports.formats import UNKNOWN, number
from reports.judged import Judged
from reports.measured import legend
from reports.speedup_charts import ladder_chart

_HOW: Final = (
    "Each rung differs in one setting from the rung that it is compared with. All rungs of a "
    "backend were alive together and took turns with their windows; every factor is a ratio of "
    "paired windows with its 95 % interval, and repetitions are further process pairs of it. "
    f"Factors over {STRICT.title} are measured, not multiplied."
)


def ladder_section(ladders: Sequence[Ladder]) -> Section | None:
    """None where the study has no ladder."""
    if not ladders:
        return None
    blocks: list[Block] = [Paragraph(text=_HOW)]
    blocks += [Paragraph(text=f"{ladder.backend}: {amp_share(ladder)}") for ladder in ladders]
    charts = tuple(_chart(ladder) for ladder in ladders)
    caption = (
        f"Images per second over {STRICT.title}, with the 95 % interval; the figure is that factor."
    )
    blocks.append(Figure(caption=caption, charts=charts))
    for ladder in ladders:
        blocks.append(_table(ladder))
        for kind, said in (("note", rung_notes(ladder)), ("warning", rung_doubts(ladder))):
            blocks += [Paragraph(text=f"{ladder.backend}, {text}", kind=kind) for text in said]
    return Section(anchor="ladder", title="What each setting adds", blocks=tuple(blocks))


def rung_notes(ladder: Ladder) -> list[str]:
    """Why a rung has no result, no factor or an undecided one, and which pairs do not count."""
    return [f"{result.rung.title}: {text}" for result in ladder.rungs for text in result.notes]


def rung_doubts(ladder: Ladder) -> list[str]:
    """What makes factors less sure than they look, each with the rungs of which it is said."""
    return by_text((result.rung.title, text) for result in ladder.rungs for text in result.doubts)


def ladder_card(ladder: Ladder) -> Card:
    """Whether AMP by itself pays, and its share in the whole gain."""
    verdict = ladder.verdict
    return Card(
        backend=ladder.backend,
        kind=verdict.outcome,
        ratio=formats.times(verdict.speedup),
        interval=formats.bounds(verdict.speedup),
        sentence=verdict.reason,
        facts=() if verdict.speedup is None else (amp_share(ladder).removesuffix("."),),
    )


def _table(ladder: Ladder) -> Table:
    return Table(
        caption=f"{ladder.backend}: the ladder",
        columns=(
            "Rung",
            "Compared with",
            "images/s",
            "Factor",
            "Verdict",
            f"Over {STRICT.title}",
            "Verdict over it",
            "Process pairs",
            "Measured in turn",
            "Status",
        ),
        rows=tuple(_row(result) for result in ladder.rungs),
        numeric=True,
    )


def _row(result: RungResult) -> tuple[str, ...]:
    counted = [] if result.gain is None else result.gain.counted
    in_turn = None if result.gain is None else result.gain.in_turn
    return (
        result.rung.title,
        result.below.title if result.below else UNKNOWN,
        number(result.images_per_s),
        *_factor(result.gain),
        *_factor(result.total),
        formats.count(len(counted) or None),
        {True: "yes", False: "no", None: UNKNOWN}[in_turn],
        result.status.replace("_", " "),
    )


def _factor(judged: Judged | None) -> tuple[str, str]:
    if judged is None:
        return UNKNOWN, UNKNOWN
    gain = judged.verdict.speedup
    return formats.gain(gain), judged.verdict.outcome


def _chart(ladder: Ladder) -> Chart:
    drawn = [(r.rung.title, _precision(r), _total(r), _text(r)) for r in ladder.rungs]
    return Chart(
        title=ladder.backend,
        svg=ladder_chart(drawn),
        alt=f"{ladder.backend}, factor over {STRICT.title}: "
        + "; ".join(f"{title} {text}" for title, _, _, text in drawn),
        legend=legend(PRECISION_COLOURS, PRECISION_COLOURS, dashed=False),
    )


def _precision(result: RungResult) -> str:
    return "fp32" if LADDER.index(result.rung) < 2 else "amp"


def _total(result: RungResult) -> Speedup | None:
    return None if result.total is None else result.total.verdict.speedup


def _text(result: RungResult) -> str:
    if result.total is None:
        return "1" if result.status == "ok" else result.status.replace("_", " ")
    if result.total.verdict.speedup is not None:
        return formats.times(result.total.verdict.speedup)
    if result.status != "ok":
        return result.status.replace("_", " ")
    return result.total.verdict.outcome
