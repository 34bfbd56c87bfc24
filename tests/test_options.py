"""Options of a run: each flag reaches its field, bad values name their flag, commands repeat."""

import re
import shlex
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import gpu
from harness.cli import main
from harness.config import PRESETS, LossScalePolicy, RunConfig
from harness.networks import NETWORKS
from harness.options import configure, repeat_command

# Every flag that says what is run → (its argument, the field, the value).
FLAGS: dict[str, tuple[str | None, str, Any]] = {
    "--data": ("photos.zip", "data", "photos.zip"),
    "--model": ("resnet34", "model", "resnet34"),
    "--image-size": ("96", "image_size", 96),
    "--batch-size": ("7", "batch_size", 7),
    "--epochs": ("3", "epochs", 3),
    "--steps": ("44", "steps", 44),
    "--windows": ("12", "windows", 12),
    "--no-validate-weights": (None, "validate_weights", False),
    "--no-diagnose": (None, "diagnose", False),
    "--trace": (None, "trace", True),
    "--warmup-steps": ("9", "warmup_steps", 9),
    "--window-steps": ("11", "window_steps", 11),
    "--optimizer": ("sgd", "optimizer", "sgd"),
    "--lr": ("0.05", "lr", 0.05),
    "--momentum": ("0.8", "momentum", 0.8),
    "--weight-decay": ("0.0005", "weight_decay", 0.0005),
    "--lr-schedule": ("cosine", "lr_schedule", "cosine"),
    "--clip-norm": ("1.5", "clip_norm", 1.5),
    "--augment": ("crop", "augment", "crop"),
    "--resize": ("pad", "resize", "pad"),
    "--input": ("live", "input", "live"),
    "--seed": ("42", "seed", 42),
    "--device": ("cuda:1", "device", "cuda:1"),
    "--amp-dtype": ("bfloat16", "amp_dtype", "bfloat16"),
    "--loss-scale": ("1024", "loss_scale", LossScalePolicy(initial=1024, dynamic=False)),
    "--threads": ("3", "threads", 3),
    "--layout": ("nhwc", "layout", "nhwc"),
    "--compile": ("on", "compile", "on"),
    "--parts": ("native", "parts", "native"),
    "--tf32": (None, "tf32", True),
    "--deterministic": (None, "deterministic", True),
    "--gradient-histogram": ("17", "gradient_histogram", 17),
    "--timeout": ("12.5", "timeout_s", 12.5),
}
WHERE_AND_HOW = {"preset", "out", "cache_dir", "strict", "python", "json"}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)


def parsed(*words: str) -> RunConfig:
    """The run that these words behind `python -m harness` describe."""
    options = main.make_context("harness", [*words]).params
    backend, amp = options.pop("backend"), options.pop("amp")
    return configure(options, backend=backend, precision="amp" if amp else "fp32")


def refusal(*words: str) -> str:
    with pytest.raises(click.UsageError) as caught:
        parsed("--backend", "fake", *words)
    return caught.value.format_message()


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_reaches_its_field_and_no_other(flag: str):
    argument, field, value = FLAGS[flag]
    plain = parsed("--backend", "fake").model_dump()

    changed = parsed("--backend", "fake", flag, *([argument] if argument else [])).model_dump()

    expected = value.model_dump() if isinstance(value, LossScalePolicy) else value
    assert plain[field] != expected
    other = {"steps": None} if field in ("epochs", "windows") else {}
    assert changed == plain | {field: expected} | other


def test_every_field_of_a_run_has_a_flag_and_every_flag_is_tested():
    fields = {field for _, field, _ in FLAGS.values()}
    options = {option.name for option in main.params} - {"version", "backend", "amp"}

    assert fields == set(RunConfig.model_fields) - {"backend", "precision", "variant", "label"}
    assert options == fields | WHERE_AND_HOW


def test_compare_takes_every_option_of_a_single_run():
    compare = main.commands["compare"]
    of_compare = {option.name for option in compare.params}

    assert {option.name for option in main.params} - {"version", "backend", "amp"} <= of_compare


@pytest.mark.parametrize("flag", ["--tf32", "--deterministic"])
def test_a_switch_can_be_turned_off(flag: str):
    off = flag.replace("--", "--no-")

    assert parsed("--backend", "fake", flag, off) == parsed("--backend", "fake")


def test_the_choices_of_a_model_are_the_networks_there_are():
    (model,) = (option for option in main.params if option.name == "model")

    assert isinstance(model.type, click.Choice)
    assert list(model.type.choices) == list(NETWORKS)


def test_the_presets_that_can_be_chosen_are_those_there_are():
    (preset,) = (option for option in main.params if option.name == "preset")

    assert isinstance(preset.type, click.Choice)
    assert set(preset.type.choices) == set(PRESETS)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--image-size", "7"),
        ("--image-size", "100000"),
        ("--batch-size", "0"),
        ("--epochs", "0"),
        ("--steps", "-1"),
        ("--warmup-steps", "0"),
        ("--window-steps", "0"),
        ("--lr", "0"),
        ("--lr", "nan"),
        ("--momentum", "1"),
        ("--weight-decay", "2"),
        ("--clip-norm", "0"),
        ("--seed", "-3"),
        ("--device", "gpu"),
        ("--loss-scale", "big"),
        ("--loss-scale", "0"),
        ("--threads", "0"),
        ("--timeout", "0"),
        # Refused by click itself:
        ("--image-size", "large"),
        ("--model", "alexnet"),
        ("--optimizer", "adamw"),
        ("--preset", "fast"),
    ],
)
def test_a_bad_value_names_its_flag_in_one_line(flag: str, value: str):
    message = refusal(flag, value)

    assert re.search(rf"{flag}['\":]", message)
    assert "\n" not in message


def test_steps_and_epochs_together_are_refused():
    assert "exactly one of --epochs, --steps and --windows" in refusal(
        "--steps", "3", "--epochs", "3"
    )


def test_an_option_beats_the_preset():
    run = parsed("--backend", "torch", "--preset", "seed", "--lr", "0.5", "--steps", "30")

    assert (run.lr, run.steps, run.epochs, run.image_size) == (0.5, 30, None, 224)


@pytest.mark.parametrize(
    ("words", "has_gpu", "size"),
    [
        ((), False, PRESETS["quick"]["image_size"]),
        ((), True, PRESETS["seed"]["image_size"]),
        (("--device", "cpu"), True, PRESETS["quick"]["image_size"]),
        (("--preset", "quick"), True, PRESETS["quick"]["image_size"]),
    ],
)
def test_the_preset_suits_the_machine_unless_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], has_gpu: bool, size: int
):
    monkeypatch.setattr(gpu, "has_gpu", lambda: has_gpu)

    assert parsed("--backend", "fake", *words).image_size == size


def fields(**changed: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"backend": st.just("torch")}, optional=changed)


RUNS = st.builds(
    lambda length, values, explained: RunConfig.model_validate(length | values | explained),
    st.one_of(
        st.fixed_dictionaries({"steps": st.integers(1, 10**9)}),
        st.fixed_dictionaries({"epochs": st.integers(1, 10**9)}),
        st.fixed_dictionaries({"windows": st.integers(1, 10**9)}),
    ),
    fields(
        precision=st.sampled_from(["fp32", "amp"]),
        amp_dtype=st.sampled_from(["float16", "bfloat16"]),
        data=st.sampled_from(["sample", "my photos/été.zip", "a'b;rm -rf $HOME", "-x", "--steps"]),
        model=st.sampled_from([*NETWORKS]),
        image_size=st.integers(8, 1024),
        batch_size=st.integers(2, 65536),
        warmup_steps=st.integers(1, 10**6),
        window_steps=st.none() | st.integers(1, 10**6),
        optimizer=st.sampled_from(["adam", "sgd"]),
        lr=st.floats(0, 10, exclude_min=True),
        momentum=st.floats(0, 1, exclude_max=True),
        weight_decay=st.floats(0, 1),
        lr_schedule=st.sampled_from(["constant", "cosine", "step"]),
        clip_norm=st.none() | st.floats(0, 1e30, exclude_min=True),
        augment=st.sampled_from(["none", "flip", "crop"]),
        input=st.sampled_from(["cached", "live", "synthetic"]),
        seed=st.integers(0, 2**31 - 1),
        device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
        loss_scale=st.builds(LossScalePolicy, initial=st.floats(1, 2**24), dynamic=st.booleans()),
        layout=st.sampled_from(["default", "nchw", "nhwc"]),
        compile=st.sampled_from(["default", "off", "on"]),
        threads=st.none() | st.integers(1, 1024),
        parts=st.sampled_from(["equal", "native"]),
        tf32=st.booleans(),
        deterministic=st.booleans(),
        validate_weights=st.booleans(),
        timeout_s=st.floats(0, 1e9, exclude_min=True),
    ),
    st.sampled_from([{}, {"trace": True}, {"diagnose": False}]),
)


@pytest.mark.parametrize("has_gpu", [False, True])
@given(run=RUNS)
def test_the_command_of_a_record_describes_the_very_same_run(run: RunConfig, has_gpu: bool):
    program, *words = shlex.split(repeat_command(run))

    assert [program, *words[:2]] == ["python", "-m", "harness"]
    assert "\n" not in repeat_command(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "has_gpu", lambda: has_gpu)
        assert parsed(*words[2:]) == run


def test_the_command_of_a_run_from_a_preset_tells_what_the_preset_set():
    run = parsed("--backend", "torch", "--amp", "--preset", "seed")

    command = repeat_command(run)

    for words in ("--amp", "--image-size 224", "--epochs 5", "--lr 0.001", "dynamic:1024"):
        assert words in command
