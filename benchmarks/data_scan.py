"""How fast, and in how much memory, a folder of tiny photos is scanned; the slope against a tenth.

Run from the repository: ``python benchmarks/data_scan.py --files 200000``. Each scan runs in a
fresh process, so that its peak memory is its own.
"""

import argparse
import io
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 20


def write_photos(folder: Path, files: int) -> None:
    """Write different JPEG files of 16×16 noise, about 700 bytes each, in 20 classes."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"class_{label:02d}").mkdir(parents=True)
    for number in range(files):
        noise = rng.integers(0, 256, (4, 4, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).resize((16, 16), Image.Resampling.BICUBIC).save(buffer, "JPEG")
        path = folder / f"class_{number % CLASSES:02d}" / f"{number:07d}.jpg"
        path.write_bytes(buffer.getvalue())


def scan_here(folder: Path) -> None:
    """Scan in this process and print what it took as one line of JSON."""
    from datasets import scan

    stages: dict[str, float] = {}
    last_s = start_s = time.perf_counter()

    def note(stage: str, done: int, total: int | None) -> None:
        nonlocal last_s
        now_s = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now_s - last_s
        last_s = now_s

    found = scan(folder, seed=0, cache_dir=folder.parent / "cache", progress=note)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "files": len(found.manifest.paths),
        "time_s": round(time.perf_counter() - start_s, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_bytes": usage.ru_maxrss * 1024,
        "stages_s": {stage: round(time_s, 2) for stage, time_s in stages.items()},
    }
    print(json.dumps(figures))


def main() -> None:
    """Generate, scan a tenth and the whole, and print both and their slope."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--scan", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scan:
        scan_here(arguments.scan)
        return
    folder = Path(tempfile.mkdtemp(prefix="data-scan-"))
    try:
        results = []
        for files in (arguments.files // 10, arguments.files):
            write_photos(folder / str(files), files)
            child = [sys.executable, __file__, "--scan", str(folder / str(files))]
            done = subprocess.run(child, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
            print(done.stdout, end="", flush=True)
        small, large = results
        more = large["files"] - small["files"]
        print(
            f"{large['files'] / large['time_s']:,.0f} files/s, peak "
            f"{large['peak_bytes'] / 1e6:,.0f} MB; "
            f"{(large['peak_bytes'] - small['peak_bytes']) / more:,.0f} bytes a file more; CPU "
            f"time a file {large['cpu_s'] / large['files'] * small['files'] / small['cpu_s']:.2f} "
            "times that of a tenth of the files"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
