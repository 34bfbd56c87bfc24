"""What the charts draw, read from their SVG."""

import math
import re

from reports import charts

COLOURS = {"fp32": "var(--fp32)"}


def subpaths(svg: str) -> list[int]:
    """Number of separate pieces of each drawn line."""
    paths = re.findall(r'<path [^>]*d="([^"]*)"[^>]*stroke="var\(--fp32\)"', svg)
    return [path.count("M") for path in paths]


def drawn(losses: list[float]) -> str:
    """The chart of one curve."""
    return charts.loss_chart(
        {"fp32": losses},
        COLOURS,
        x_domain=(1, len(losses)),
        y_domain=charts.loss_domain([losses]),
    )


def test_a_loss_that_is_not_a_number_breaks_the_line():
    assert subpaths(drawn([2, 2, 1, 1, 1])) == [1]
    assert subpaths(drawn([2, 2, math.nan, 1, 1])) == [2]
    assert subpaths(drawn([2, 2, math.inf, 1, 1])) == [2]


def test_the_loss_axis_starts_at_zero_and_holds_every_curve():
    assert charts.loss_domain([[2.0, 1.0], [4.0, math.nan]]) == (0, 4 * 1.05)


def test_losses_that_span_a_hundred_times_get_a_logarithmic_axis():
    assert charts.loss_domain([[0.5, 60.0]]) == (0.5, 60.0)
    assert "loss (logarithmic)" in drawn([60.0, 1.0, 0.5])


def test_losses_without_one_number_still_have_an_axis():
    low, high = charts.loss_domain([[math.nan], []])

    assert low < high


def test_a_curve_of_any_length_has_at_most_200_points():
    assert [charts.bin_steps(steps) for steps in (1, 200, 201, 4000)] == [1, 1, 2, 20]


def test_losses_near_the_largest_float_are_drawn():
    assert "<svg" in drawn([1.7e308] * 1000)


def test_text_in_a_chart_is_escaped_and_left_to_the_pages_fonts():
    svg = charts.loss_chart(
        {"<b>红</b>": [1.0, 2.0]}, {"<b>红</b>": "red"}, x_domain=(1, 2), y_domain=(0, 2)
    )

    assert "<b>" not in svg
    assert "font-family" not in svg
    assert "<text" in svg
