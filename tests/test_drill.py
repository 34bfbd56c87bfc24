"""Loss scaling under fault."""

import dataclasses
import json
import subprocess
import sys

import pytest
from fake_runs import fake_run

from backends.fake import FakeBackend
from harness.drill import POISONED_STEPS, drill
from harness.protocol import Unsupported


def findings(**changes) -> dict[str, list]:
    run = fake_run(precision="amp", loss_scale="dynamic:1024", **changes)
    found: dict[str, list] = {}
    for item in drill(FakeBackend(), run):
        found.setdefault(item.check, []).append(item)
    return found


def test_exactly_the_poisoned_steps_are_skipped_and_the_scale_halves():
    found = findings()
    for step in POISONED_STEPS:
        (skipped,) = found[f"step {step} poisoned: skipped steps"]
        assert (skipped.observed, skipped.passed) == (f"[{step}]", True)
    assert [item.observed for item in found["loss scale after it"]] == ["512", "512"]
    assert [item.observed for item in found["weights changed by the skipped step"]] == ["0", "0"]


def test_an_adapter_that_applies_an_infinite_gradient_is_caught(monkeypatch: pytest.MonkeyPatch):
    step = FakeBackend.train_step

    def apply_all(self, batch):
        poisoned = self._poisoned
        step(self, batch)
        if poisoned:
            self._weight = self._weight + float("inf")

    monkeypatch.setattr(FakeBackend, "train_step", apply_all)
    with pytest.warns(RuntimeWarning):
        found = findings()
    assert not any(item.passed for item in found["weights changed by the skipped step"])
    assert not any(item.passed for item in found["loss of the steps that follow"])


def test_training_that_overflows_by_itself_is_no_drill(monkeypatch: pytest.MonkeyPatch):
    take_steps = FakeBackend.take_steps

    def overflow_now_and_then(self):
        return [dataclasses.replace(result, skipped=True) for result in take_steps(self)]

    monkeypatch.setattr(FakeBackend, "take_steps", overflow_now_and_then)
    with pytest.raises(ValueError, match=r"batch 4 overflows at loss scale 1024.*--batch-size"):
        findings()


def test_a_fixed_scale_does_not_halve():
    run = fake_run(precision="amp", loss_scale="1024")
    scales = [item for item in drill(FakeBackend(), run) if item.check == "loss scale after it"]
    assert [(item.observed, item.passed) for item in scales] == [("1024", True)] * 2


def test_a_backend_without_amp_is_unsupported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"amp_available": false}')
    with pytest.raises(Unsupported):
        drill(FakeBackend(), fake_run(precision="amp"))


@pytest.mark.timeout(600)
def test_torch_and_tensorflow_hold_and_paddle_says_why_it_cannot_be_drilled(needs_frameworks):
    needs_frameworks("torch", "tensorflow", "paddle")
    command = [sys.executable, "-m", "harness", "drill", "--json", "--device", "cpu"]

    done = subprocess.run(
        [*command, "--batch-size", "4"], capture_output=True, text=True, timeout=580, check=False
    )

    results = {(row["backend"], row["optimizer"]): row for row in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert len(results) == 6
    for optimizer in ("adam", "sgd"):
        assert "float16" in results["paddle", optimizer]["unavailable"]
        for backend in ("torch", "tensorflow"):
            told = {item["check"]: item for item in results[backend, optimizer]["findings"]}
            assert told["the run ends"]["observed"].startswith("diverged: the forward pass")
            # Stated, not hidden: the skipped step did move BatchNorm's statistics.
            moved = told["BatchNorm statistics moved by the skipped step"]["observed"]
            assert moved.startswith("40 of 40")
