"""What a page consists of, written once and rendered as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reports.comparison import ComparisonRow
from reports.formats import listed


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Plain text; foreign text in it is escaped by the templates."""

    text: str
    kind: str = "plain"
    """plain, note, or warning."""
    block: str = "paragraph"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells with a row heading in its first column."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: bool = False
    """Whether all columns after the first hold figures, which are set flush right."""
    block: str = "table"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One drawing of a figure."""

    title: str
    svg: str
    alt: str
    """What a reader who cannot see the drawing would learn from it."""
    legend: tuple[tuple[str, str, str], ...] = ()
    """Label, CSS colour and dash pattern (``none``, or lengths of dash and gap)."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Charts side by side under one caption. Markdown leaves them out."""

    caption: str
    charts: tuple[Chart, ...]
    block: str = "figure"


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Command lines, each under what it repeats."""

    commands: tuple[tuple[str, str], ...]
    block: str = "commands"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms with their explanations."""

    terms: tuple[tuple[str, str], ...]
    block: str = "terms"


@dataclass(frozen=True, kw_only=True)
class Details:
    """Blocks that a page folds away under a line. Markdown says that the page has them."""

    summary: str
    blocks: tuple[Paragraph | Table | Commands, ...]
    block: str = "details"


Block = Paragraph | Table | Figure | Commands | Terms | Details


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page under its heading."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Card:
    """What was measured in one backend, in a sentence."""

    backend: str
    kind: str
    """A verdict's word."""
    ratio: str
    interval: str
    """Empty where there is none."""
    sentence: str
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    """Machine, data and date."""
    headline: str
    cards: tuple[Card, ...]
    caveat: str
    """What stands in for what the study was too small to measure."""
    warnings: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    settings: str = ""
    """Those of :attr:`rows` and :attr:`cards`, where the study has others too; else empty."""
    sections: tuple[Section, ...]
    footer: str


def by_text(said: Iterable[tuple[str, str]]) -> list[str]:
    """``a and b: text`` for each text, with the names that it was said of."""
    names: dict[str, list[str]] = {}
    for name, text in said:
        names.setdefault(text, []).append(name)
    return [f"{listed(of_text)}: {text}" for text, of_text in names.items()]
