"""The page in a real browser: it fits a phone, and its charts are drawn."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_records import ok_record, study_of, unavailable_record, write_study

from reports import write_report

pytestmark = pytest.mark.browser

MEASURE = """<script>
const root = document.documentElement;
const charts = [...document.querySelectorAll("[role=img] svg")];
const heights = charts.map((svg) => Math.round(svg.getBoundingClientRect().height));
root.setAttribute("data-measured", [root.scrollWidth, innerWidth, Math.min(...heights)].join(" "));
</script></body>"""


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_the_page_never_scrolls_sideways_and_draws_its_charts(tmp_path: Path, width: int):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: apt-get install chromium")
    arms = [f"{b}-{p}" for b in ("torch", "paddle") for p in ("fp32", "amp")]
    long_reason = "no kernels " * 20 + "x" * 300
    records = [
        ok_record("torch", data={"classes": ["c" * 200, "红烧肉"]}, command="python " + "y" * 500),
        ok_record("torch", "amp", skipped_at=[2]),
        ok_record("paddle"),
        unavailable_record("paddle", long_reason),
    ]
    page = write_report(write_study(tmp_path, study_of(*arms), *records)).html
    html = page.read_text("utf-8").replace("</body>", MEASURE)
    page.write_text(html, "utf-8")

    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}"),
            *(f"--window-size={width},2000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    measured = re.search(r'data-measured="(\d+) (\d+) (\d+)"', done.stdout)
    assert measured is not None
    scroll_width, window_width, lowest_chart = map(int, measured.groups())
    assert scroll_width <= window_width
    assert lowest_chart > 50
