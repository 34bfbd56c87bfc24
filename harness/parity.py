"""Is it the same experiment? Each framework's mathematics against a float64 reference.

Three questions, one table. In float64, where rounding hides nothing: are logits, layer outputs,
gradients, running statistics and trained weights equal? In the precision and on the device that
are timed: does each layer alone, given the reference's own input and output gradient, compute what
it should? And, without a verdict: how far apart do whole passes drift through rounding alone?
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from harness.config import RunConfig
from harness.trial import CHECKPOINTS, Arrays, TrialTask, layer_questions, save_arrays
from harness.worker_process import WorkerFailed, WorkerProcess

Verdict = Literal["pass", "fail", "noise", "reference", "unavailable"]

OnTrial = Callable[[str], None]

FLOAT64_TOLERANCES: dict[str, tuple[float, str]] = {
    "loss": (1e-10, "float64 rounding is 1e-16, amplified by the depth of the network"),
    "logits": (1e-10, "float64 rounding is 1e-16, amplified by the depth of the network"),
    "outputs": (1e-9, "as the logits; one layer alone may be small"),
    "output_gradients": (1e-9, "a backward pass through the same layers"),
    "gradients": (1e-9, "a backward pass through the same layers"),
    "statistics": (1e-9, "the batch's mean and unbiased variance"),
    **{
        f"weights after {steps}": (
            1e-7,
            "training amplifies rounding; a wrong epsilon, momentum or decay shows above 1e-5",
        )
        for steps in CHECKPOINTS
    },
}
"""Quantity → bound of the relative error in float64, and why that bound."""

LAYER_TOLERANCES: dict[str, tuple[float, str]] = {
    "float32": (1e-5, "24-bit mantissa, sums of up to 4608 products"),
    "float16": (5e-3, "11-bit mantissa"),
    "bfloat16": (4e-2, "8-bit mantissa"),
}
"""Compute dtype → bound of one layer's relative error, and why that bound."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One optimizer whose steps are compared."""

    optimizer: Literal["adam", "sgd"]
    weight_decay: float

    def __str__(self) -> str:
        return self.optimizer + (f", L2 {self.weight_decay:g}" if self.weight_decay else "")


RECIPES = tuple(
    Recipe(optimizer=optimizer, weight_decay=weight_decay)
    for optimizer in ("adam", "sgd")
    for weight_decay in (0.0, 5e-4)
)


@dataclass(frozen=True, kw_only=True)
class ParityRow:
    """One line of the table."""

    model: str
    backend: str
    precision: str
    """float64, or the compute dtype of the timed configuration."""
    quantity: str
    error: float | None
    """‖x − ref‖ / ‖ref‖ over the whole quantity; None where nothing could be computed."""
    worst: str | None
    """Layer or tensor with the largest relative error of its own."""
    worst_error: float | None
    first_over: str | None
    """First one, in the order of the network, whose own error is over the tolerance."""
    tolerance: float | None
    """Bound of ``worst_error``; None for noise, which has no verdict."""
    verdict: Verdict
    reason: str
    """Why the tolerance is what it is, or why there is no verdict."""


@dataclass(frozen=True, kw_only=True)
class ParityPlan:
    """What to compare with what."""

    backends: tuple[str, ...]
    models: tuple[str, ...]
    base: RunConfig
    """Device, layout, compile mode and sizes of the timed configuration."""
    pythons: Mapping[str, str]
    recipes: tuple[Recipe, ...] = RECIPES


def check_parity(plan: ParityPlan, *, on_trial: OnTrial) -> Iterator[ParityRow]:
    """Yield the rows of the table as they become known; the first backend is the reference."""
    for model in plan.models:
        with tempfile.TemporaryDirectory(prefix="amp-parity-") as folder:
            yield from _ModelParity(plan, model, Path(folder), on_trial).rows()


def relative_error(x: np.ndarray, reference: np.ndarray, floor: float = 0.0) -> float:
    """‖x − reference‖ / max(‖reference‖, floor) in the 2-norm; NaN or infinity in x is infinite."""
    if x.shape != reference.shape:
        return float("inf")
    difference = float(np.linalg.norm((x - reference).ravel()))
    if not np.isfinite(difference):
        return float("inf")
    norm = max(float(np.linalg.norm(reference.ravel())), floor)
    return difference / norm if norm > 0 else (0.0 if difference == 0 else float("inf"))


def compare_quantity(
    arrays: Arrays, reference: Arrays, quantity: str
) -> tuple[float, dict[str, float]] | None:
    """Overall error, and each tensor's own; None if the reference lacks the quantity.

    A tensor's own norm is not taken below a millionth of the largest one's: what cancels to
    nothing (a gradient that is zero in exact arithmetic) has no relative error worth the name.
    """
    names = [name for name in reference if name.startswith(f"{quantity}/")]
    if not names:
        return None
    floor = 1e-6 * max(float(np.linalg.norm(reference[name].ravel())) for name in names)
    nothing = np.empty(0)
    errors = {
        name.partition("/")[2]: relative_error(arrays.get(name, nothing), reference[name], floor)
        for name in names
    }
    if not all(np.isfinite(error) for error in errors.values()):
        return float("inf"), errors
    together = relative_error(
        np.concatenate([arrays[name].ravel() for name in names]),
        np.concatenate([reference[name].ravel() for name in names]),
    )
    return together, errors


class _ModelParity:
    """The rows of one network."""

    def __init__(self, plan: ParityPlan, model: str, folder: Path, on_trial: OnTrial) -> None:
        self._plan = plan
        self._model = model
        self._folder = folder
        self._on_trial = on_trial
        self._reference_backend: str | None = None
        """The first backend that runs float64 here."""
        self._reference: Arrays = {}
        """Its probe and, by recipe, its trained weights."""

    def rows(self) -> Iterator[ParityRow]:
        for backend in self._plan.backends:
            yield from self._float64_rows(backend)
        if self._reference_backend is None:
            return
        for precision in ("fp32", "amp"):
            dtype = "float32" if precision == "fp32" else self._plan.base.amp_dtype
            questions = self._folder / f"questions-{dtype}.npz"
            save_arrays(questions, layer_questions(self._run("fp32"), self._reference, dtype))
            answers = self._try(
                "reference of each layer", self._reference_backend, "float64", layers=questions
            )
            for backend in self._plan.backends:
                yield from self._timed_rows(backend, precision, dtype, questions, answers)

    def _float64_rows(self, backend: str) -> Iterator[ParityRow]:
        for index, recipe in enumerate(self._plan.recipes):
            arrays = self._try(
                f"float64, {recipe}",
                backend,
                "float64",
                recipe=recipe,
                probe=index == 0,
                train=True,
            )
            if isinstance(arrays, WorkerFailed):
                yield self._absent(backend, "float64", f"training with {recipe}", arrays)
                continue
            self._reference_backend = self._reference_backend or backend
            is_reference = backend == self._reference_backend
            named = {
                name.replace("/", f" steps of {recipe}/", 1)
                if name.startswith("weights after")
                else name: array
                for name, array in arrays.items()
            }
            if is_reference:
                self._reference |= named
            for quantity in _quantities(named):
                bound = FLOAT64_TOLERANCES.get(quantity.partition(" steps of")[0])
                if bound is not None:
                    yield self._judge(
                        backend, "float64", quantity, named, self._reference, bound, is_reference
                    )

    def _timed_rows(
        self,
        backend: str,
        precision: Literal["fp32", "amp"],
        dtype: str,
        questions: Path,
        answers: Arrays | WorkerFailed,
    ) -> Iterator[ParityRow]:
        recipe = self._plan.recipes[0]
        arrays = self._try(
            f"{dtype}, layer by layer",
            backend,
            precision,
            recipe=recipe,
            layers=questions,
            probe=True,
            train=True,
        )
        for result in (arrays, answers):
            if isinstance(result, WorkerFailed):
                yield self._absent(backend, dtype, "each layer alone", result)
                return
        assert not isinstance(arrays, WorkerFailed)
        assert not isinstance(answers, WorkerFailed)
        for quantity in _quantities(answers):
            yield self._judge(
                backend, dtype, quantity, arrays, answers, LAYER_TOLERANCES[dtype], False
            )
        for quantity in ("logits", "gradients"):
            yield self._judge(backend, dtype, quantity, arrays, self._reference, None, False)
        last = f"weights after {CHECKPOINTS[-1]}"
        renamed = {
            name.replace("/", f" steps of {recipe}/", 1): array
            for name, array in arrays.items()
            if name.startswith(f"{last}/")
        }
        quantity = f"{last} steps of {recipe}"
        yield self._judge(backend, dtype, quantity, renamed, self._reference, None, False)

    def _judge(
        self,
        backend: str,
        precision: str,
        quantity: str,
        arrays: Arrays,
        reference: Arrays,
        bound: tuple[float, str] | None,
        is_reference: bool,
    ) -> ParityRow:
        compared = compare_quantity(arrays, reference, quantity)
        assert compared is not None, quantity
        error, errors = compared
        worst = max(errors, key=lambda name: errors[name])
        over = [name for name, own in errors.items() if bound is not None and own > bound[0]]
        verdict: Verdict = "noise"
        reason = "rounding, amplified by the depth of the network: shown, not judged"
        if bound is not None:
            verdict, reason = ("fail" if over else "pass"), bound[1]
        if is_reference:
            verdict, reason = "reference", "the other frameworks are compared with this one"
        return ParityRow(
            model=self._model,
            backend=backend,
            precision=precision,
            quantity=quantity,
            error=error,
            worst=worst,
            worst_error=errors[worst],
            first_over=over[0] if over else None,
            tolerance=bound[0] if bound else None,
            verdict=verdict,
            reason=reason,
        )

    def _absent(
        self, backend: str, precision: str, quantity: str, failure: WorkerFailed
    ) -> ParityRow:
        """The row of a trial that computed nothing."""
        return ParityRow(
            model=self._model,
            backend=backend,
            precision=precision,
            quantity=quantity,
            error=None,
            worst=None,
            worst_error=None,
            first_over=None,
            tolerance=None,
            verdict="unavailable" if failure.status == "unavailable" else "fail",
            reason=failure.reason,
        )

    def _run(self, precision: str, backend: str = "", recipe: Recipe | None = None) -> RunConfig:
        recipe = recipe or self._plan.recipes[0]
        changes = {
            "backend": backend or self._plan.backends[0],
            "precision": precision,
            "model": self._model,
            "optimizer": recipe.optimizer,
            "weight_decay": recipe.weight_decay,
        }
        if precision == "float64":
            # The mathematics, not the path: no layout or compiler may stand in the way.
            changes |= {"layout": "default", "compile": "default"}
        return self._plan.base.model_copy(update=changes)

    def _try(
        self,
        what: str,
        backend: str,
        precision: str,
        *,
        recipe: Recipe | None = None,
        layers: Path | None = None,
        probe: bool = False,
        train: bool = False,
    ) -> Arrays | WorkerFailed:
        """The arrays of one trial, or why there are none."""
        run = self._run(precision, backend, recipe)
        self._on_trial(f"{self._model}: {backend}, {what}")
        out = self._folder / "answer.npz"
        task = TrialTask(out=out, probe=probe, train=train, layers=layers)
        log = self._folder / f"{backend}.log"
        try:
            with WorkerProcess(run, python=self._plan.pythons[backend], log=log) as worker:
                worker.ask(
                    "trial", run=run.model_dump(mode="json"), task=task.model_dump(mode="json")
                )
        except WorkerFailed as failure:
            return failure
        with np.load(out, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def _quantities(arrays: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("/")[0] for name in arrays))
