"""The parity table: its arithmetic, and the three frameworks against each other."""

import json
import subprocess
import sys

import numpy as np
import pytest

from harness.parity import FLOAT64_TOLERANCES, compare_quantity, relative_error


def test_the_relative_error_is_that_of_the_two_norm():
    # ‖(0, 3) − (4, 3)‖ = 4, ‖(4, 3)‖ = 5.
    assert relative_error(np.array([0.0, 3.0]), np.array([4.0, 3.0])) == pytest.approx(0.8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_infinitely_wrong(bad: float):
    assert relative_error(np.array([bad, 1.0]), np.array([1.0, 1.0])) == np.inf


def test_another_shape_is_infinitely_wrong():
    assert relative_error(np.ones(3), np.ones((3, 1))) == np.inf


def test_zeros_agree_with_zeros_and_with_nothing_else():
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.array([1e-100, 0]), np.zeros(2)) == np.inf


def test_each_tensor_has_its_own_error_beside_that_of_the_whole():
    reference = {
        "gradients/a": np.array([3.0]),
        "gradients/b": np.array([4.0]),
        "loss/x": np.ones(1),
    }
    arrays = {"gradients/a": np.array([3.0]), "gradients/b": np.array([4.4])}
    # Together ‖(0, 0.4)‖ / ‖(3, 4)‖ = 0.08; b alone 0.1.
    compared = compare_quantity(arrays, reference, "gradients")
    assert compared == (pytest.approx(0.08), {"a": 0, "b": pytest.approx(0.1)})


def test_a_tensor_that_is_missing_is_infinitely_wrong():
    reference = {"gradients/a": np.ones(2), "gradients/b": np.ones(2)}
    assert compare_quantity({"gradients/a": np.ones(2)}, reference, "gradients") == (
        np.inf,
        {"a": 0, "b": np.inf},
    )


def test_what_cancels_to_nothing_is_measured_against_a_millionth_of_the_largest():
    reference = {"gradients/big": np.array([1.0]), "gradients/zero": np.array([1e-17])}
    arrays = {"gradients/big": np.array([1.0]), "gradients/zero": np.array([-1e-17])}
    _, errors = compare_quantity(arrays, reference, "gradients") or (0, {})
    assert errors == {"big": 0, "zero": pytest.approx(2e-11)}


def test_a_quantity_that_the_reference_lacks_is_not_compared():
    assert compare_quantity({}, {"loss/x": np.ones(1)}, "gradients") is None


def rows_of(*words: str, timeout_s: float = 280) -> tuple[int, list[dict]]:
    """Exit code and rows of `python -m harness parity` with these words."""
    command = [sys.executable, "-m", "harness", "parity", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_three_frameworks_train_lenet_by_the_same_rules(needs_frameworks):
    needs_frameworks("torch", "tensorflow", "paddle")

    code, rows = rows_of("--model", "lenet", "--image-size", "28", "--device", "cpu")

    failed = [row for row in rows if row["verdict"] == "fail"]
    assert (code, failed) == (0, [])
    in_float64 = {
        row["backend"]: []
        for row in rows
        if (row["precision"], row["verdict"]) == ("float64", "pass")
    }
    assert set(in_float64) == {"tensorflow", "paddle"}
    for row in rows:
        if row["precision"] == "float64" and row["verdict"] == "pass":
            kind = row["quantity"].partition(" steps of")[0]
            assert row["worst_error"] <= row["tolerance"] == FLOAT64_TOLERANCES[kind][0]
    compared = {row["quantity"] for row in rows if row["precision"] == "float64"}
    for recipe in ("adam", "adam, L2 0.0005", "sgd", "sgd, L2 0.0005"):
        assert {f"weights after {steps} steps of {recipe}" for steps in (1, 3, 10)} <= compared
    amp = {row["backend"]: row["verdict"] for row in rows if row["precision"] == "float16"}
    assert amp["paddle"] == "unavailable"


def test_a_backend_that_computes_something_else_turns_the_table_red(needs_frameworks):
    needs_frameworks("torch")

    # The fake backend trains a softmax regression on averaged pixels: nothing can be equal.
    code, rows = rows_of(
        *("--backend", "torch", "--backend", "fake", "--model", "lenet", "--image-size", "28"),
        *("--device", "cpu"),
    )

    verdicts = {row["quantity"]: row["verdict"] for row in rows if row["backend"] == "fake"}
    assert code == 1
    assert all(row["first_over"] for row in rows if row["verdict"] == "fail" and row["worst"])
    assert verdicts["logits"] == verdicts["loss"] == verdicts["gradients"] == "fail"


def test_only_the_steps_of_the_optimizer_that_was_asked_for_are_compared(needs_frameworks):
    needs_frameworks("paddle")

    code, rows = rows_of(
        *("--backend", "paddle", "--model", "lenet", "--image-size", "28", "--device", "cpu"),
        *("--optimizer", "sgd", "--lr", "1e-5"),
    )

    assert code == 0
    trained = {row["quantity"] for row in rows if "steps of" in row["quantity"]}
    assert trained
    assert all("steps of sgd" in quantity for quantity in trained)
