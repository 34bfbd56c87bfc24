"""A limit on the resident memory of a process and its children, enforced from outside.

Why resident memory is sampled, and no limit of the kernel set:

- ``RLIMIT_AS`` counts address space. With a ResNet-18 on the CPU, TensorFlow had reserved 2.2 GB
  where 1.0 were resident, PyTorch 1.2 for 0.5 and Paddle 1.3 for 0.6: it would end each framework
  long before its memory is spent, and each at another point.
- ``RLIMIT_DATA`` counts private writable mappings, touched or not, and no page of a library: 90 MB
  less than what was resident in one process, 35 MB more in another. It grows with the number of
  threads, whose stacks are mapped and hardly used.
- ``RLIMIT_RSS`` is without effect on Linux since 2.4.30 (setrlimit(2)).
- A control group would be exact, but takes rights that a user or a container rarely has.

The sampler only has to stop a process before it eats the machine. Whether one stayed below the
limit is told exactly by the kernel's own high-water mark, for which see the caller.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_SAMPLE_EVERY_S = 0.01
"""A core touches new pages at about 1 to 2 GB/s: 10 to 20 MB in this time."""
_SAMPLES_BETWEEN_LISTINGS = 50
"""Listing the children reads the table of all processes, which takes longer than a sample."""


class MemoryLimit:
    """Watches a process tree while the context lasts, and kills it when it passes the limit.

    While it lasts, Linux is also told to choose this process first if the machine itself runs out.

    Args:
        pid: process at the root of the tree.
        limit_bytes: resident bytes of the tree, shared libraries included; None only watches.
    """

    def __init__(self, pid: int, limit_bytes: int | None) -> None:
        self._root = psutil.Process(pid)
        self._limit_bytes = limit_bytes
        self._tree = [self._root]
        self._over = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory limit", daemon=True)
        self.peak_bytes = 0
        """Highest sample so far."""

    @property
    def exceeded(self) -> bool:
        """Whether the tree passed the limit, and was killed."""
        return self._over.is_set()

    def resident_bytes(self) -> int:
        """Resident memory of the tree now; 0 where it has ended."""
        resident = 0
        for process in self._tree:
            with contextlib.suppress(psutil.Error):
                resident += process.memory_info().rss
        return resident

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._root.pid}/oom_score_adj").write_text("1000")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        samples = 0
        while not self._end.wait(_SAMPLE_EVERY_S):
            if samples % _SAMPLES_BETWEEN_LISTINGS == 0:
                with contextlib.suppress(psutil.Error):
                    self._tree = [self._root, *self._root.children(recursive=True)]
            samples += 1
            resident = self.resident_bytes()
            self.peak_bytes = max(self.peak_bytes, resident)
            if self._limit_bytes is not None and resident > self._limit_bytes:
                self._over.set()
                self._kill()
                return

    def _kill(self) -> None:
        # Stopped first, the root can start no child that would be missed.
        with contextlib.suppress(psutil.Error):
            self._root.suspend()
            self._tree = [self._root, *self._root.children(recursive=True)]
        for process in reversed(self._tree):
            with contextlib.suppress(psutil.Error):
                process.kill()
