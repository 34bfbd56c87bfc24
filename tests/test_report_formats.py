"""Figures as text, by hand."""

import math

import pytest

from reports import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (1.4249, "1.42"),
        (0.058231, "0.0582"),
        (9.996, "10.0"),
        (38.14, "38.1"),
        (1234.5, "1,234"),
        (99951, "99,951"),
        (0.00001234, "1.23e-05"),
        (-2.5, "-2.50"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_a_number_has_three_significant_digits(value: float | None, text: str):
    assert formats.number(value) == text


def test_other_figures():
    assert formats.ratio(1.5) == "×1.50"
    assert formats.interval(1.38, 1.456) == "[1.38, 1.46]"
    assert formats.interval(None, None) == "–"
    assert formats.percent(0.525) == "52.5 %"
    assert formats.mebibytes(300 * 2**20) == "300 MiB"
    assert formats.mebibytes(24 * 2**30) == "24.0 GiB"
    assert formats.peak(2**20, "host") == "1 MiB host"
    assert formats.count(65536.0) == "65,536"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 红烧肉 é", "plain 红烧肉 é"),
        ("two\nlines\tand", "two lines and"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\u2066x", r"\u2066x"),
    ],
)
def test_control_and_direction_characters_are_shown_not_obeyed(text: str, shown: str):
    assert formats.printable(text) == shown
