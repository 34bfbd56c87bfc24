"""Download Food-101 from its publisher: streamed, resumed where it broke off, checked."""

import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

from datasets.errors import DataError, Progress, no_progress

FOOD101_URL = "https://data.vision.ee.ethz.ch/cvl/food-101.tar.gz"
FOOD101_MD5 = "85eeb15f3717b99a5da872d97d918f87"
"""As published with the dataset; Bossard, Guillaumin, Van Gool, ECCV 2014."""

_READ_BYTES = 2**18
_TIMEOUT_S = 60.0
_ATTEMPTS = 5
"""Broken connections in a row, without one byte gained, before giving up."""


def fetch_food101(folder: Path, *, progress: Progress | None = None) -> Path:
    """Download ``food-101.tar.gz`` (5 GB) into a folder and return its path.

    Raises:
        DataError: see `download`.
    """
    return download(
        FOOD101_URL,
        folder / "food-101.tar.gz",
        md5=FOOD101_MD5,
        progress=progress or no_progress,
    )


def download(
    url: str, target: Path, *, md5: str, progress: Progress, retry_wait_s: float = 1.0
) -> Path:
    """Download a file to ``target``; what is there with the right MD5 is kept.

    The bytes go to ``<target>.partial``, which a later call resumes, and are renamed only when
    their MD5 is right.

    Raises:
        DataError: no connection, refused, disk full, or the wrong MD5 (the bytes are removed).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    if target.exists():
        if _md5(target, progress) == md5:
            return target
        raise DataError(f"{target}: exists, but is not the published file; move it away")
    failures = 0
    while True:
        before = _size(partial)
        try:
            _download_rest(url, partial, progress)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 and error.code != 429:
                raise DataError(f"{url}: the server answers {error.code} {error.reason}") from error
            reason: Exception = error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DataError(
                    f"{partial.parent}: the disk is full; make room and run it again, it goes on "
                    f"after {_size(partial):,} bytes"
                ) from error
            reason = error
        failures = 1 if _size(partial) > before else failures + 1
        if failures >= _ATTEMPTS:
            why = reason.reason if isinstance(reason, urllib.error.URLError) else reason
            raise DataError(
                f"{url}: {why}; check the network and run it again, it goes on after "
                f"{_size(partial):,} bytes"
            ) from reason
        time.sleep(retry_wait_s * failures)
    if _md5(partial, progress) != md5:
        partial.unlink()
        raise DataError(
            f"{url}: what was downloaded has not the published MD5 {md5}; it was removed, run it "
            "again"
        )
    os.replace(partial, target)
    return target


def _download_rest(url: str, partial: Path, progress: Progress) -> None:
    """Append what is missing; start over where the server cannot resume."""
    have = _size(partial)
    request = urllib.request.Request(url, headers={"User-Agent": "amp-harness"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        # 416: nothing is left to send; the MD5 tells whether that is right.
        if error.code == 416 and have:
            error.close()
            return
        raise
    with response:
        resumed = response.status == 206 and _range_start(response) == have
        if not resumed:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        free = shutil.disk_usage(partial.parent).free
        if total is not None and free < total - have:
            raise DataError(
                f"{partial.parent}: the download needs {total - have:,} more bytes, {free:,} are "
                "free; make room or choose another folder"
            )
        with open(partial, "ab" if resumed else "wb") as file:
            while data := response.read(_READ_BYTES):
                file.write(data)
                have += len(data)
                progress("downloading", have, total)
        if total is not None and have < total:
            raise ConnectionError(f"the connection broke after {have:,} of {total:,} bytes")


def _range_start(response: http.client.HTTPResponse) -> int:
    start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else -1


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path, progress: Progress) -> str:
    digest, done, total = hashlib.md5(usedforsecurity=False), 0, _size(path)
    with open(path, "rb") as file:
        while data := file.read(2**20):
            digest.update(data)
            done += len(data)
            progress("checking", done, total)
    return digest.hexdigest()
