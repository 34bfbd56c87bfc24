"""Remembers the facts of files that have been read, so that a scan reads only what is new.

A file is known by device, inode, size, and the times of its last change of content and status, to
the nanosecond. Writing to a file always moves its status time; files that changed within the last
two seconds are not remembered, since a clock that ticks slowly could hide a second change.
"""

import hashlib
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from datasets.photo_facts import PhotoFacts, facts_version

_SETTLED_NS = 2 * 10**9
_CHECKSUM_BYTES = 8
_MAX_INDEX_BYTES = 2 * 2**30
"""About 1.5 million photos; a larger index is started afresh."""


class ScanIndex:
    """A small database in the cache folder; without a writable one nothing is remembered.

    Threads share it. A damaged database is removed: it only saves time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "scan-index.sqlite"
        self._lock = threading.Lock()
        self._version = hashlib.sha256(facts_version().encode()).digest()[:8]
        self._database = self._open()

    def key(self, path: Path) -> bytes | None:
        """Return what the file is known by, or None where it cannot be remembered."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED_NS:
            return None
        numbers = (status.st_dev, status.st_ino, status.st_size)
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return self._version + struct.pack("<3Q2q", *(n & 2**64 - 1 for n in numbers), *times)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, PhotoFacts]:
        """Return the facts that are remembered of these files."""
        places = ",".join("?" * len(keys))
        query = f"SELECT key, facts FROM photos WHERE key IN ({places})"
        found = {}
        for key, packed in self._run(lambda database: database.execute(query, keys).fetchall()):
            facts, checksum = packed[:-_CHECKSUM_BYTES], packed[-_CHECKSUM_BYTES:]
            if checksum == _checksum(facts):
                found[key] = PhotoFacts.from_bytes(facts)
        return found

    def remember(self, facts: Mapping[bytes, PhotoFacts]) -> None:
        """Keep the facts of these files."""
        packed = {key: each.to_bytes() for key, each in facts.items()}
        rows = [(key, each + _checksum(each)) for key, each in packed.items()]

        def insert(database: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
            with database:
                database.executemany("INSERT OR REPLACE INTO photos VALUES (?, ?)", rows)
            return []

        self._run(insert)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection | None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size > _MAX_INDEX_BYTES:
                self._path.unlink()
            database = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
        except (OSError, sqlite3.Error):
            return None
        try:
            # Losing the last rows in a power cut costs reading a few photos again.
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS photos (key BLOB PRIMARY KEY, facts BLOB NOT NULL)"
            )
        except sqlite3.Error as error:
            self._give_up(database, error)
            return None
        return database

    def _give_up(self, database: sqlite3.Connection, error: sqlite3.Error) -> None:
        """Go on without; a damaged database is removed, so that the next scan makes a new one."""
        database.close()
        if type(error) is sqlite3.DatabaseError:  # its subclasses tell of locks and full disks
            self._path.unlink(missing_ok=True)

    def _run(
        self, action: Callable[[sqlite3.Connection], list[tuple[bytes, bytes]]]
    ) -> list[tuple[bytes, bytes]]:
        """Run an action; a database that fails is given up."""
        with self._lock:
            if self._database is None:
                return []
            try:
                return action(self._database)
            except sqlite3.Error as error:
                self._give_up(self._database, error)
                self._database = None
                return []


def _checksum(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=_CHECKSUM_BYTES).digest()
