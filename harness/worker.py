"""The child process of one arm: ``python -m harness.worker``.

It reads one JSON command a line from its standard input and answers each with one JSON line on a
private copy of its standard output; what libraries print goes to standard error. It ends with its
parent: when the input closes, the process leaves at once, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, TextIO

import psutil

from datasets import DataError
from harness.arm import Arm
from harness.conditions import Conditions
from harness.config import RunConfig
from harness.drill import drill
from harness.energy import prepare_meter
from harness.environment import describe_environment
from harness.gpu import GpuMemoryWatch, find_gpu
from harness.inputs import InputSpec, open_pixels
from harness.loader import measure_loaders
from harness.peaks import measure_peak, peak_key
from harness.protocol import Backend, Unsupported
from harness.records import MemoryPart
from harness.registry import load_backend
from harness.trial import TrialTask, perform

PARENT_GONE = 75
"""Exit code of a worker whose parent vanished."""


_LAST_COMMANDS = ("close", "trial", "drill", "capabilities", "measure_peak")
"""Commands after whose answer the worker leaves."""


class Session:
    """The commands of one worker; each method is a command, its keywords the arguments."""

    def __init__(self) -> None:
        self.backend: Backend | None = None

    def prepare(self, *, run: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Import the framework and make everything ready for the first step."""
        config = self._run = RunConfig.model_validate(run)
        self._gpu_memory = GpuMemoryWatch()
        self._alone = True
        self.backend = load_backend(config.backend)
        self._arm = Arm(config, self.backend, open_pixels(InputSpec.model_validate(spec), config))
        prepared = self._arm.prepare()
        self._device_uuid = prepared.in_force.device_uuid
        gpu = find_gpu(self._device_uuid) if self._device_uuid else None
        meter, energy = prepare_meter(prepared.in_force.device_type, gpu)
        self._conditions = Conditions(gpu=gpu, meter=meter)
        environment = describe_environment()
        return {"prepared": prepared, "energy": energy, "environment": environment}

    def trial(self, *, run: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
        """Compute what a parity check compares; see :mod:`harness.trial`."""
        config = RunConfig.model_validate(run)
        self.backend = load_backend(config.backend)
        perform(self.backend, config, TrialTask.model_validate(task))
        return {"environment": describe_environment()}

    def drill(self, *, run: dict[str, Any]) -> dict[str, Any]:
        """Put the loss scaler under fault; see :mod:`harness.drill`."""
        config = RunConfig.model_validate(run)
        self.backend = load_backend(config.backend)
        return {"findings": drill(self.backend, config)}

    def capabilities(self, *, backend: str) -> dict[str, Any]:
        """Try what the framework can do here; see :mod:`harness.doctor`."""
        self.backend = load_backend(backend)
        capabilities = self.backend.capabilities()
        return {"capabilities": capabilities, "environment": describe_environment()}

    def measure_peak(self, *, run: dict[str, Any]) -> dict[str, Any]:
        """Measure how fast the run's dtype is multiplied; see :mod:`harness.peaks`."""
        config = RunConfig.model_validate(run)
        self.backend = load_backend(config.backend)
        key = peak_key(config, self.backend.open(config), describe_environment())
        return {"peak": measure_peak(self.backend, key)}

    def window(self, **arguments: Any) -> dict[str, Any]:
        """Train some steps; see :meth:`harness.arm.Arm.window`."""
        self._conditions.start()
        result = self._arm.window(**arguments)
        result.window.conditions = self._conditions.stop()
        if self._alone:
            self._gpu_memory.sample()
        return {"result": result}

    def evidence(self) -> dict[str, Any]:
        """Show what a step runs in; ends the warm-up, after which other workers may start."""
        self._alone = False
        return {"evidence": self._arm.evidence()}

    def profile(self, *, steps: int, trace: str | None) -> dict[str, Any]:
        """Show where the time of a step goes; see :meth:`harness.arm.Arm.profile`."""
        return {"profile": self._arm.profile(steps=steps, trace=trace)}

    def gradient_histogram(self) -> dict[str, Any]:
        """Count the gradients by size."""
        return {"histogram": self._arm.gradient_histogram()}

    def evaluate(self) -> dict[str, Any]:
        """Validate the current weights."""
        return {"accuracy": self._arm.evaluate()}

    def conclude(self) -> dict[str, Any]:
        """Peaks of the training, and hashes of what it was given."""
        device = self._arm.memory()
        memory = MemoryPart(
            host_peak_bytes=host_peak_bytes(),
            device_allocated_peak_bytes=device.allocated_peak_bytes,
            device_reserved_peak_bytes=device.reserved_peak_bytes,
            device_used_delta_bytes=self._gpu_memory.used_delta_bytes(self._device_uuid),
        )
        return {
            "memory": memory,
            "batch_sha256": self._arm.batch_sha256,
            "order_sha256": self._arm.order_sha256,
        }

    def compute_window(self, **arguments: Any) -> dict[str, Any]:
        """Train on one resident batch; see :meth:`harness.arm.Arm.compute_window`."""
        self._conditions.start()
        window = self._arm.compute_window(**arguments)
        window.conditions = self._conditions.stop()
        return {"window": window}

    def loader(self, *, spec: dict[str, Any]) -> dict[str, Any]:
        """Measure the loader alone; see :mod:`harness.loader`."""
        return {"loader": measure_loaders(InputSpec.model_validate(spec), self._run)}

    def close(self) -> dict[str, Any]:
        """Release the device."""
        self._arm.close()
        return {}


def host_peak_bytes() -> int:
    """Largest resident set of this process so far."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    if sys.platform == "linux":
        # ru_maxrss would begin with the peak of the parent, from whose memory this one was forked.
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_failure(error: BaseException, backend: Backend | None) -> dict[str, str]:
    """The status and reason that ``error`` becomes in the record."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, Unsupported):
        return {"status": "unavailable", "reason": str(error)}
    if isinstance(error, MemoryError) or (backend and backend.is_out_of_memory(error)):
        return {
            "status": "out_of_memory",
            "reason": f"{text}; choose a smaller --batch-size or --image-size",
        }
    if isinstance(error, DataError | ValueError):
        return {"status": "failed", "reason": str(error)}
    return {"status": "failed", "reason": text}


def serve(commands: queue.Queue[str], answers: TextIO) -> None:
    """Answer commands until the last one has been answered."""
    session = Session()
    while True:
        command = json.loads(commands.get())
        name, arguments = command["command"], command["arguments"]
        try:
            answer = {"ok": _jsonable(getattr(session, name)(**arguments))}
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            answer = {"error": describe_failure(error, session.backend)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if "error" in answer or name in _LAST_COMMANDS:
            return


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(values, inf_nan_mode="strings")


def _read_commands(commands: queue.Queue[str]) -> None:
    for line in sys.stdin:
        commands.put(line)
    # A parent that was killed cannot stop us: its end of the pipe closes.
    os._exit(PARENT_GONE)


def main() -> None:
    """Serve the parent on the pipes that it opened."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    serve(commands, answers)
    sys.stderr.flush()
    # Frameworks have been seen to crash or hang while they are torn down; the work is done.
    os._exit(0)


if __name__ == "__main__":
    main()
