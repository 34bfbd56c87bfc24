"""The parent's side of a worker: start, ask, wait, kill."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.config import RunConfig
from harness.environment import worker_variables
from harness.records import Status

_LINE_LIMIT_BYTES = 64 * 2**20
"""Longest answer that is read; a longer one is no answer of ours."""
_GRACE_S = 10.0
"""Time that a worker has to end once it has nothing more to say."""


class WorkerFailed(Exception):
    """The worker ended the arm: the status and reason for its record."""

    def __init__(self, status: Status, reason: str, *, killed: bool = False) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason
        self.killed = killed
        """Ended by a SIGKILL that was not ours: as a rule the system's, for lack of memory."""


class _Done(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: dict[str, Any]


class _Reason(BaseModel):
    status: Status
    reason: str


class _Failed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    error: _Reason


_ANSWER: TypeAdapter[_Done | _Failed] = TypeAdapter(_Done | _Failed)


class WorkerProcess:
    """One child process that serves the commands of :class:`harness.worker.Session`.

    Use as a context manager: on leaving, the process and all its children are gone.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        python: str,
        log: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the worker of ``run`` with the interpreter ``python``; its output goes to ``log``.

        ``variables`` are set in its environment beside those of every worker.

        Raises:
            WorkerFailed: the interpreter cannot be started.
        """
        self._run = run
        self._log_path = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("wb")
        try:
            self._process = subprocess.Popen(
                [python, "-m", "harness.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=worker_variables(run, os.environ) | dict(variables or {}),
                # Ctrl-C belongs to the parent alone, which then ends the workers in order.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise WorkerFailed("failed", f"cannot start {python}: {error.strerror}") from error
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read_answers, daemon=True).start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer.

        Raises:
            WorkerFailed: the worker reported a failure, died, hung, or wrote nonsense.
        """
        assert self._process.stdin is not None
        message = json.dumps({"command": command, "arguments": arguments}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(message.encode())
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=self._run.timeout_s)
        except queue.Empty:
            self.kill()
            raise WorkerFailed(
                "failed",
                f"no answer to '{command}' within {self._run.timeout_s:g} s, so the worker was "
                "killed; raise --timeout if the step is really that slow",
            ) from None
        if not line:
            raise self._death()
        return self._parse(line)

    def kill(self) -> None:
        """End the process and its children at once; harmless when they are gone."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if sys.platform == "win32":
                    self._process.kill()
                else:
                    os.killpg(self._process.pid, signal.SIGKILL)
        # A process in the middle of a device driver's call dies when that returns, if it does.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            while line := self._process.stdout.readline(_LINE_LIMIT_BYTES):
                self._answers.put(line)
        self._answers.put(b"")

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            answer = _ANSWER.validate_json(line)
        except ValidationError:
            self.kill()
            shown = line[:80].decode("utf-8", "replace").strip()
            reason = f"the worker's answer is unreadable: {shown!r}"
            raise WorkerFailed("failed", reason) from None
        if isinstance(answer, _Failed):
            raise WorkerFailed(answer.error.status, answer.error.reason)
        return answer.ok

    def _death(self) -> WorkerFailed:
        try:
            code = self._process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            reason = "the worker closed its answers but lived on, so it was killed"
            return WorkerFailed("failed", f"{reason} (see {self._log_path})")
        reason = f"the worker exited with code {code}"
        killed = False
        if code < 0:
            name = signal.Signals(-code).name
            reason = f"the worker was ended by {name}"
            if killed := name == "SIGKILL":
                reason += " (by a person, or by the system because memory ran out)"
        if last := self._last_log_line():
            reason += f"; its last words: {last}"
        return WorkerFailed("failed", f"{reason} (see {self._log_path})", killed=killed)

    def _last_log_line(self) -> str:
        with contextlib.suppress(OSError):
            with self._log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode("utf-8", "replace").split("\n")
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return ""
