"""The page in a real browser: it fits a phone, and its charts are drawn."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_records import (
    evidence_part,
    gradient_sizes,
    histogram_part,
    ok_record,
    precision_part,
    study_of,
    unavailable_record,
    write_study,
)

from reports import write_report

pytestmark = pytest.mark.browser

DTYPES = ("float16", "float32", "float16")
SIZES = gradient_sizes({-30: 10, -20: 30, -10: 60})

# Told from inside a frame, because a headless window is never narrower than 500 px.
MEASURE = """<script>
const charts = [...document.querySelectorAll("[role=img] svg")];
const heights = charts.map((svg) => Math.round(svg.getBoundingClientRect().height));
const lowest = Math.min(...heights);
parent.postMessage([document.documentElement.scrollWidth, innerWidth, lowest].join(" "), "*");
</script></body>"""
FRAME = """<!doctype html><html><body><script>
addEventListener("message", (event) => document.body.setAttribute("data-measured", event.data));
</script><iframe src="report.html" style="border: 0; width: {width}px; height: 900px"></iframe>
</body></html>"""


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_the_page_never_scrolls_sideways_and_draws_its_charts(tmp_path: Path, width: int):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: apt-get install chromium")
    arms = [f"{b}-{p}" for b in ("torch", "paddle") for p in ("fp32", "amp")]
    long_reason = "no kernels " * 20 + "x" * 300
    records = [
        ok_record("torch", data={"classes": ["c" * 200, "红烧肉"]}, command="python " + "y" * 500),
        ok_record(
            "torch",
            "amp",
            skipped_at=[2],
            precision_in_force=precision_part(evidence=evidence_part({"l" * 90: DTYPES})),
            gradient_histogram=histogram_part(SIZES, SIZES, 65536),
        ),
        ok_record("paddle", training={"layout": "n" * 80}),
        ok_record("torch", seed=1),
        ok_record("torch", "amp", seed=1),
        unavailable_record("paddle", long_reason),
    ]
    page = write_report(write_study(tmp_path, study_of(*arms), *records)).html
    page.write_text(page.read_text("utf-8").replace("</body>", MEASURE), "utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width), "utf-8")

    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1600,1000", "--virtual-time-budget=5000", "--dump-dom"),
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    measured = re.search(r'data-measured="(\d+) (\d+) (\d+)"', done.stdout)
    assert measured is not None
    scroll_width, frame_width, lowest_chart = map(int, measured.groups())
    assert frame_width == width
    assert scroll_width <= width
    assert lowest_chart > 50
