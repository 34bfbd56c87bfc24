"""Records in, tables and pages out: the report of a comparison or of a single run.

Reads records only. The libraries that draw and compute (pandas, altair, scipy, jinja2) are
imported where they are used, so that importing this package stays cheap.
"""

from reports.cells import read_results
from reports.comparison import ArmFigures, ComparisonRow, comparison_table
from reports.console import render_console, render_results
from reports.pages import ReportFiles, write_report

__all__ = [
    "ArmFigures",
    "ComparisonRow",
    "ReportFiles",
    "comparison_table",
    "read_results",
    "render_console",
    "render_results",
    "write_report",
]
