"""The options of a run on the command line: one list, shared by every command that trains.

Nothing heavy is imported here, so that ``--help`` answers at once; values are validated by
:class:`harness.config.RunConfig`, which gives them their meaning.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from harness.registry import BACKENDS

if TYPE_CHECKING:
    from pydantic import ValidationError

    from harness.config import RunConfig

MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "lenet", "convnet")
HOW_OPTIONS = ("cache_dir", "strict", "json", "python")
"""Options that say where things are or how they are told, not what is run."""


class Folder(click.ParamType[str]):
    """The path of a folder; an empty text, such as an unset variable of a shell, is none."""

    name = "folder"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty text."""
        if not value.strip():
            self.fail("the name of the folder is empty", param, ctx)
        return value


backends_option = click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice([*BACKENDS]),
    help="Framework; repeatable; fake computes nothing.  [torch, tensorflow, paddle]",
)
"""The frameworks of a command that looks at several."""


def margin_option(what: str) -> Callable[..., Any]:
    """``--margin``: the half-width about a ratio of 1 within which nothing matters."""
    return click.option(
        "--margin",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.02,
        show_default=True,
        help=what,
    )


python_option = click.option(
    "--python",
    multiple=True,
    metavar="BACKEND=PATH",
    help="Interpreter of a backend's own environment.  [.venv-BACKEND, else this one]",
)

_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--preset",
        type=click.Choice(["quick", "seed", "throughput"]),
        help="Defaults of the options below. [quick; seed where there is an NVIDIA GPU]",
    ),
    click.option(
        "--data",
        metavar="PATH|sample",
        help="Folder of class folders, archive of one, Food-101 tree, or manifest CSV.  [sample]",
    ),
    click.option("--model", type=click.Choice(MODELS), help="Network.  [resnet18]"),
    click.option("--image-size", type=int, metavar="PX", help="Side of the square images."),
    click.option("--batch-size", type=int, metavar="N", help="Images in a step."),
    click.option("--epochs", type=int, metavar="N", help="Length of the training in epochs ..."),
    click.option("--steps", type=int, metavar="N", help="... or in optimizer steps."),
    click.option(
        "--windows", type=int, metavar="N", help="... or in timed windows, for the speed alone."
    ),
    click.option("--warmup-steps", type=int, metavar="N", help="First steps that are not timed."),
    click.option("--optimizer", type=click.Choice(["adam", "sgd"]), help="Optimizer.  [adam]"),
    click.option("--lr", type=float, help="Learning rate.  [0.001]"),
    click.option("--momentum", type=float, help="Momentum of SGD.  [0.9]"),
    click.option("--weight-decay", type=float, help="L2 penalty, coupled.  [0]"),
    click.option(
        "--lr-schedule",
        type=click.Choice(["constant", "cosine", "step"]),
        help="Learning rate over the training.  [constant]",
    ),
    click.option("--clip-norm", type=float, help="Bound of the unscaled gradients' global norm."),
    click.option(
        "--augment",
        type=click.Choice(["none", "flip", "crop"]),
        help="Random mirror images, or shifts as well; the same for every framework.  [none]",
    ),
    click.option(
        "--resize",
        type=click.Choice(["squash", "crop", "pad"]),
        help="How a photo becomes a square.  [squash]",
    ),
    click.option(
        "--input",
        type=click.Choice(["cached", "live", "synthetic"]),
        help="Decode once, decode at every step, or one noise batch on the device.  [cached]",
    ),
    click.option("--seed", type=int, help="Of weights, order, split and augmentation.  [0]"),
    click.option("--device", metavar="auto|cpu|cuda|cuda:N", help="Where to train.  [auto]"),
    click.option(
        "--amp-dtype",
        type=click.Choice(["float16", "bfloat16"]),
        help="Low precision of the AMP arm.  [float16]",
    ),
    click.option(
        "--loss-scale",
        metavar="dynamic|dynamic:N|N",
        help="Loss scale of a float16 run: dynamic (starting at N), or fixed.  [dynamic:65536]",
    ),
    click.option("--threads", type=int, metavar="N", help="CPU threads.  [all usable]"),
    click.option(
        "--layout",
        type=click.Choice(["default", "nchw", "nhwc"]),
        help="Memory layout of the activations.  [the framework's own]",
    ),
    click.option(
        "--compile",
        type=click.Choice(["default", "off", "on"]),
        help="Fusing compiler: Inductor, XLA, or Paddle's to_static.  [the framework's own]",
    ),
    click.option(
        "--parts",
        type=click.Choice(["equal", "native"]),
        help="Equal mathematics, or each framework's own layers and optimizers.  [equal]",
    ),
    click.option("--tf32/--no-tf32", default=None, help="TF32 in float32 products.  [no]"),
    click.option(
        "--deterministic/--no-deterministic", default=None, help="Deterministic kernels.  [no]"
    ),
    click.option(
        "--gradient-histogram",
        type=int,
        metavar="STEP",
        help="Count the gradients by size after this many steps.",
    ),
    click.option(
        "--window-steps", type=int, metavar="N", help="Steps in a timed window at most.  [2 s]"
    ),
    click.option(
        "--validate-weights/--no-validate-weights",
        default=None,
        help="Validate after each epoch and at the end.  [yes]",
    ),
    click.option(
        "--diagnose/--no-diagnose",
        default=None,
        help="Measure afterwards where the time of a step goes.  [yes]",
    ),
    click.option(
        "--trace/--no-trace",
        default=None,
        help="Keep the framework's own trace of a few steps.  [no]",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=float,
        metavar="SECONDS",
        help="Silence after which a worker is killed.  [1800]",
    ),
    click.option("--out", type=Folder(), metavar="DIR", help="Where the results go.  [runs/TIME]"),
    click.option(
        "--cache-dir", type=Folder(), metavar="DIR", help="Where decoded images are kept."
    ),
    click.option("--strict", is_flag=True, help="Refuse data with an unreadable file."),
    python_option,
    click.option("--json", "json", is_flag=True, help="Print the result as JSON on stdout."),
]


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` every option of a run."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def configure(options: dict[str, Any], **fixed: Any) -> RunConfig:
    """The run that ``options`` (from the command line, None where not given) describe.

    Raises:
        click.UsageError: an option's value cannot be used.
    """
    from pydantic import ValidationError

    from harness.config import PRESETS, RunConfig

    given = {
        name: value
        for name, value in options.items()
        if value is not None and name not in (*HOW_OPTIONS, "out", "preset")
    }
    preset = dict(PRESETS[preset_name(options)])
    if given.keys() & _LENGTHS:
        preset = {name: value for name, value in preset.items() if name not in _LENGTHS}
    try:
        return RunConfig.model_validate(preset | given | fixed)
    except ValidationError as error:
        raise usage_error(error) from error


def usage_error(error: ValidationError) -> click.UsageError:
    """What is wrong with the first value that was refused, by the flag that sets it."""
    first = error.errors()[0]
    flag = f"{_flag(str(first['loc'][0]))}: " if first["loc"] else ""
    return click.UsageError(flag + first["msg"].removeprefix("Value error, "))


def interpreters(backends: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """Backend → interpreter, from ``--python`` and the environments in the current folder.

    Raises:
        click.UsageError: an item of ``given`` cannot be used.
    """
    from harness.interpreters import choose_interpreters

    try:
        return choose_interpreters(backends, given, folder=Path.cwd())
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def refuse_given(
    ctx: click.Context, why: str, *, but: Collection[str] = (), only: Collection[str] | None = None
) -> None:
    """Refuse options on the command line that would have no effect.

    Args:
        ctx: of the command.
        why: the end of the sentence that begins with the option.
        but: names of options that are allowed.
        only: names of those that are refused; None: all others.

    Raises:
        click.UsageError: one of those was given.
    """
    for option in ctx.command.params:
        name = option.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in but and (only is None or name in only):
            raise click.UsageError(f"{option.opts[0]} {why}", ctx)


def preset_name(options: dict[str, Any]) -> str:
    """The preset that was chosen, or that suits this machine."""
    if options["preset"]:
        return options["preset"]
    from harness.gpu import has_gpu

    on_gpu = options["device"] != "cpu" and has_gpu()
    return "seed" if on_gpu else "quick"


def repeat_command(run: RunConfig) -> str:
    """The command line that repeats ``run`` alone, on this version, whatever the presets become."""
    # One preset on every machine: without it, one with a GPU would take another.
    words = ["python", "-m", "harness", "--preset", "quick", "--backend", run.backend]
    if run.precision == "amp":
        words.append("--amp")
    skipped = {"backend", "precision", "variant", "label"}
    for name, field in type(run).model_fields.items():
        value = getattr(run, name)
        # A preset might say otherwise, so everything that one can set is spelled out.
        if name in skipped or value is None or (value == field.default and name not in _PRESET):
            continue
        flag = _flag(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def _flag(field: str) -> str:
    """The option that sets ``field`` of a run."""
    return f"--{field.removesuffix('_s').replace('_', '-')}"


_LENGTHS = frozenset(("steps", "epochs", "windows"))
_PRESET = frozenset(
    {
        *("image_size", "batch_size", "warmup_steps", "optimizer", "lr", "loss_scale"),
        *("layout", "input", "device"),
    }
)
"""Fields that some preset sets."""
