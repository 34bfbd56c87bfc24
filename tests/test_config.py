"""The options of a run: what is accepted, what is refused, and how they are written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.config import PRESETS, LossScalePolicy, RunConfig


def run_config(**changes: Any) -> RunConfig:
    return RunConfig.model_validate({"backend": "fake", "steps": 10} | changes)


def refusal(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        run_config(**changes)
    (error,) = caught.value.errors()
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


@pytest.mark.parametrize(
    ("text", "initial", "dynamic"),
    [
        ("dynamic", 65536, True),
        ("dynamic:1024", 1024, True),
        ("1024", 1024, False),
        (" 1 ", 1, False),
        ("dynamic:2.5", 2.5, True),
        ("16777216", 2**24, False),
    ],
)
def test_a_loss_scale_is_read(text: str, initial: float, dynamic: bool):
    policy = LossScalePolicy.parse(text)

    assert (policy.initial, policy.dynamic) == (initial, dynamic)
    assert (policy.growth_factor, policy.backoff_factor, policy.growth_interval) == (2, 0.5, 2000)


@pytest.mark.parametrize(
    "text", ["", "dynamic:", "static", "dynamic:x", "-1", "1e4", "dynamic 1024", "nan", "1.2.3"]
)
def test_a_loss_scale_that_is_not_understood_is_refused_with_what_may_be_given(text: str):
    message = refusal(loss_scale=text)

    assert message.startswith("loss_scale: ")
    assert repr(text) in message
    assert "give dynamic, dynamic:1024 or a number" in message


@pytest.mark.parametrize("text", ["0", "0.5", "dynamic:0", "16777217", "9" * 40])
def test_a_loss_scale_out_of_range_is_refused_in_one_line_with_the_range(text: str):
    # Below 1 it would shrink gradients; above 2**24 every float16 gradient of 1 is infinite.
    message = refusal(loss_scale=text)

    assert message.startswith("loss_scale: ")
    assert "\n" not in message
    assert "1 to 16777216" in message


@given(st.floats(1, 2**24), st.booleans())
def test_a_loss_scale_is_written_as_it_is_read(initial: float, dynamic: bool):
    policy = LossScalePolicy(initial=initial, dynamic=dynamic)

    assert LossScalePolicy.parse(str(policy)) == policy


def test_round_loss_scales_are_written_without_a_fraction():
    assert str(LossScalePolicy()) == "dynamic:65536"
    assert str(LossScalePolicy(initial=1024, dynamic=False)) == "1024"


@pytest.mark.parametrize("length", [{"steps": None}, {"steps": 3, "epochs": 3}])
def test_exactly_one_of_steps_and_epochs_is_needed(length: dict[str, Any]):
    assert "exactly one of --epochs, --steps and --windows" in refusal(**length)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices_are_accepted(device: str):
    assert run_config(device=device).device == device


@pytest.mark.parametrize("device", ["gpu", "CUDA", "cuda:", "cuda:-1", "mps", "cpu:0", "cuda:0\n"])
def test_another_device_is_refused_with_the_choices(device: str):
    message = refusal(device=device)

    assert message.startswith("device: ")
    assert "give auto, cpu, cuda or cuda:0" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision", "fp16"),
        ("amp_dtype", "float32"),
        ("image_size", 7),
        ("image_size", 1025),
        ("batch_size", 1),
        ("steps", 0),
        ("warmup_steps", 0),
        ("window_steps", 0),
        ("optimizer", "adamw"),
        ("lr", 0),
        ("lr", 11),
        ("lr", float("nan")),
        ("momentum", 1),
        ("weight_decay", -0.1),
        ("lr_schedule", "linear"),
        ("clip_norm", 0),
        ("augment", "rotate"),
        ("input", "stream"),
        ("seed", -1),
        ("seed", 2**31),
        ("layout", "NCHW"),
        ("compile", "xla"),
        ("threads", 0),
        ("timeout_s", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(field: str, value: Any):
    assert refusal(**{field: value}).startswith(f"{field}: ")


def test_an_unknown_field_is_refused():
    assert refusal(learning_rate=0.1).startswith("learning_rate: ")


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        run_config().lr = 0.1


def test_a_configuration_survives_a_message():
    run = run_config(loss_scale="dynamic:1024", clip_norm=1.5, precision="amp", device="cuda:1")

    assert RunConfig.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize(
    ("precision", "amp_dtype", "scales"),
    [
        ("amp", "float16", True),
        ("amp", "bfloat16", False),
        ("fp32", "float16", False),
        ("float64", "float16", False),
    ],
)
def test_only_float16_scales_its_loss(precision: str, amp_dtype: str, scales: bool):
    # bfloat16 has the eight exponent bits of float32; float16 has five.
    run = run_config(precision=precision, amp_dtype=amp_dtype)

    assert run.scales_loss == scales
    assert run.arm == f"fake-{precision}"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_every_preset_is_a_valid_run(preset: str, precision: str):
    run = RunConfig.model_validate({"backend": "torch", "precision": precision} | PRESETS[preset])

    assert run.steps is None or run.warmup_steps < run.steps


def test_the_seed_preset_is_the_original_experiment():
    run = RunConfig.model_validate({"backend": "paddle", "precision": "amp"} | PRESETS["seed"])

    assert (run.model, run.image_size, run.batch_size, run.epochs) == ("resnet18", 224, 16, 5)
    assert (run.optimizer, run.lr, str(run.loss_scale)) == ("adam", 1e-3, "dynamic:1024")


def test_both_arms_of_the_quick_preset_take_equally_many_steps_that_are_enough_to_time():
    quick = PRESETS["quick"]

    assert quick["steps"] - quick["warmup_steps"] >= 6
    assert "precision" not in quick
