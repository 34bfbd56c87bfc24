"""A self-contained HTML page of a scan: its figures, and the photos of each class."""

import base64
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from datasets.decode import UnreadableImageError, decode, pillow_warnings_ignored, read_file
from datasets.errors import DataError, Progress, no_progress, printable
from datasets.loading import Scan
from datasets.overview import Overview
from datasets.parallel import ordered_map
from datasets.sources import SPLITS

_THUMBNAIL = 96
_MAX_PHOTOS = 3000
_PHOTOS_PER_CLASS = (4, 240)


def write_contact_sheet(
    path: Path, found: Scan, overview: Overview, *, progress: Progress | None = None
) -> None:
    """Write the page. It holds small copies of the photos: at most 3,000, evenly from each class.

    Raises:
        DataError: the file cannot be written.
    """
    import jinja2  # only here: a worker may run without it

    report = progress or no_progress
    manifest = found.manifest
    fewest, most = _PHOTOS_PER_CLASS
    per_class = min(max(_MAX_PHOTOS // len(manifest.classes), fewest), most)
    chosen = [
        _spread(np.flatnonzero(manifest.labels == label), per_class)
        for label in range(len(manifest.classes))
    ]
    repeated = np.bincount(found.duplicates.groups)[found.duplicates.groups] > 1
    total, done = sum(len(rows) for rows in chosen), 0
    sheets = []

    def draw(row: int) -> str | None:
        return _thumbnail(manifest.root / manifest.paths[row])

    with pillow_warnings_ignored():
        for name, rows in zip(manifest.classes, chosen, strict=True):
            photos = []
            for row, image in zip(rows, ordered_map(draw, rows), strict=True):
                split = SPLITS[manifest.splits[row]]
                marks = [split, *(["duplicate"] if repeated[row] else [])]
                photos.append(
                    {"image": image, "marks": marks, "path": printable(manifest.paths[row])}
                )
                done += 1
                report("drawing the contact sheet", done, total)
            sheets.append({"name": printable(name), "photos": photos})
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["printable"] = printable
    page = environment.from_string(_PAGE).render(overview=overview, sheets=sheets)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error


def _spread(rows: npt.NDArray[np.int64], most: int) -> list[int]:
    """At most so many of the rows, evenly spread."""
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
    return rows.tolist()


def _thumbnail(path: Path) -> str | None:
    """A small JPEG as a data address; None where the file has gone or changed meanwhile."""
    try:
        rgb = decode(read_file(path)).rgb
    except UnreadableImageError:
        return None
    rgb.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    rgb.save(buffer, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Dataset {{ overview.name | printable }}</title>
<style>
:root { color-scheme: light dark; --line: #8884; --train: #2a78d6; --val: #c2410c; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2.5rem 0 .5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; }
.scroll { overflow-x: auto; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem; }
.facts div { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem; }
.facts b { display: block; font-size: 1.5rem; }
.warning { border-left: 4px solid var(--val); padding: .3rem .8rem; margin: .5rem 0; }
.sheet { display: flex; flex-wrap: wrap; gap: 6px; }
.sheet figure { margin: 0; width: 96px; height: 96px; display: grid; place-items: center;
  border-bottom: 4px solid var(--train); }
.sheet figure.val { border-color: var(--val); }
.sheet figure.duplicate { outline: 3px dashed #a855f7; }
.key span { padding-right: 1.2rem; }
</style>
<h1>{{ overview.name | printable }}</h1>
<p>{{ overview.root | printable }}<br><small>manifest {{ overview.manifest_sha256 }}</small></p>
<div class="facts">
<div><b>{{ "{:,}".format(overview.images) }}</b>
photos, {{ overview.classes | length }} classes</div>
<div><b>{{ "{:,}".format(overview.train_images) }} / {{ "{:,}".format(overview.val_images) }}</b>
train / val, split {{ overview.split }}</div>
<div><b>{{ "%.2f" | format(overview.imbalance) }}</b>largest class over smallest</div>
<div><b>{{ overview.quarantined | length }}</b>files quarantined</div>
<div><b>{{ overview.byte_identical }} + {{ overview.pixel_identical }} +
{{ overview.near_identical }}</b>duplicates by bytes, by pixels, to the eye</div>
<div><b>{{ overview.leaked_val_images }}</b>validation photos leaked into training</div>
</div>
{% for warning in overview.warnings %}<p class="warning">{{ warning | printable }}</p>
{% endfor %}
<h2>Classes</h2>
<div class="scroll"><table><tr><th>class<th class="n">train<th class="n">val</tr>
{% for class in overview.classes %}<tr><td>{{ class.name | printable }}
<td class="n">{{ class.train_images }}<td class="n">{{ class.val_images }}</tr>
{% endfor %}</table></div>
<h2>Photos</h2>
<div class="scroll"><table>
{% for title, counts in [("formats", overview.formats), ("modes", overview.modes)] %}
<tr><th>{{ title }}<td>{% for name, n in counts.items() %}{{ name }} {{ n }}&ensp;{% endfor %}
{% endfor %}
<tr><th>width × height<td>smallest {{ overview.size_min | join(" × ") }},
median {{ "%g × %g" | format(*overview.size_median) }},
largest {{ overview.size_max | join(" × ") }}
{% for title, values in [("mean of R, G, B", overview.channel_mean),
("standard deviation", overview.channel_std)] %}
<tr><th>{{ title }}<td>{% for x in values %}{{ "%.3f" | format(x) }}&ensp;{% endfor %}
{% endfor %}
{% for note, n in overview.notes.items() %}<tr><th>{{ note }}<td>{{ n }}{% endfor %}
</table></div>
{% if overview.quarantined %}<h2>Quarantined</h2>
<div class="scroll"><table><tr><th>file<th>reason</tr>
{% for bad in overview.quarantined[:1000] %}<tr><td>{{ bad.path | printable }}
<td>{{ bad.reason }}</tr>
{% endfor %}</table></div>
{% if overview.quarantined | length > 1000 %}<p>The first 1,000; quarantine.csv has all.
{% endif %}{% endif %}
{% if overview.duplicate_groups %}<h2>Duplicates</h2>
<div class="scroll"><table>
{% for group in overview.duplicate_groups %}<tr><td>{% for path in group[:20] %}
{{ path | printable }}{% if not loop.last %}<br>{% endif %}{% endfor %}</tr>
{% endfor %}</table></div>{% endif %}
<p class="key"><span style="color: var(--train)">▬ train</span>
<span style="color: var(--val)">▬ val</span><span style="color: #a855f7">┄ has a duplicate</span>
Small copies of the photos: share this page only where you may share them.</p>
{% for sheet in sheets %}<h2>{{ sheet.name }}</h2>
<div class="sheet">
{% for photo in sheet.photos %}<figure class="{{ photo.marks | join(' ') }}"
title="{{ photo.path }} ({{ photo.marks | join(', ') }})">{% if photo.image %}<img loading="lazy"
alt="{{ photo.path }}" src="{{ photo.image }}">{% else %}gone{% endif %}</figure>
{% endfor %}</div>
{% endfor %}
</html>
"""
