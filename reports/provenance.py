"""Sections about where the figures come from: data, machine, settings, commands."""

from __future__ import annotations

from harness.records import DataPart, EnvironmentPart, Record
from harness.speedup import (
    DECISION_CONFIDENCE,
    DISPLAY_CONFIDENCE,
    MIN_WINDOWS,
    PRIOR_MATTERS_BELOW,
)
from reports import formats
from reports.blocks import Block, Commands, Details, Paragraph, Section, Table, Terms
from reports.cells import Results
from reports.formats import UNKNOWN, count, number


def data_section(results: Results) -> Section | None:
    """What was trained on, what was left out and why."""
    if results.study is not None:
        data = results.study.data
    else:
        data = next((record.data for record in results.records if record.data is not None), None)
    if data is None:
        return None
    blocks: list[Block] = [_data_table(data)]
    blocks += [Paragraph(text=text, kind="warning") for text in data.warnings]
    if data.quarantined:
        blocks.append(
            Table(
                caption=f"Quarantined files ({count(len(data.quarantined))}), left out of the data",
                columns=("File", "Reason"),
                rows=tuple((file.path, file.reason) for file in data.quarantined),
            )
        )
    else:
        blocks.append(Paragraph(text="No file was quarantined."))
    return Section(anchor="data", title="Data", blocks=tuple(blocks))


def _data_table(data: DataPart) -> Table:
    rows = (
        ("Name", data.name),
        ("Training images", count(data.train_images)),
        ("Validation images", count(data.val_images)),
        ("Classes", f"{count(len(data.classes))}: {', '.join(data.classes)}"),
        ("Manifest SHA-256", data.manifest_sha256 or "none (synthetic input has no files)"),
    )
    return Table(caption="What was trained on", columns=("", "Value"), rows=rows)


def machine_section(results: Results) -> Section | None:
    """Machine and software of each arm, equal arms together."""
    blocks: list[Block] = []
    study = results.study
    environments = {r.arm: r.environment for r in results.records if r.environment is not None}
    shown = environments or ({"study": study.environment} if study is not None else {})
    for environment, arms in _grouped(shown):
        title = "All arms" if len(arms) == len(shown) else ", ".join(arms)
        rows = _environment_rows(environment)
        blocks.append(Table(caption=title, columns=("", "Value"), rows=tuple(rows)))
    devices = tuple(
        (
            record.arm,
            record.device.type if record.device else UNKNOWN,
            record.device.name if record.device else UNKNOWN,
            (record.device.uuid if record.device else None) or UNKNOWN,
            record.framework_version or UNKNOWN,
            record.precision.dtype,
            record.precision.effective or "not shown",
            {True: "on", False: "off", None: UNKNOWN}[record.precision.tf32],
        )
        for record in results.records
    )
    if devices:
        columns = (
            "Arm", "Device", "Name", "UUID", "Framework version", "Dtype asked", "Dtype that ran",
            "TF32",
        )  # fmt: skip
        blocks.append(Table(caption="Device and precision", columns=columns, rows=devices))
    return Section(anchor="machine", title="Machine", blocks=tuple(blocks)) if blocks else None


def _grouped(
    environments: dict[str, EnvironmentPart],
) -> list[tuple[EnvironmentPart, list[str]]]:
    groups: dict[str, tuple[EnvironmentPart, list[str]]] = {}
    for arm, environment in environments.items():
        groups.setdefault(environment.model_dump_json(), (environment, []))[1].append(arm)
    return list(groups.values())


def _environment_rows(environment: EnvironmentPart) -> list[tuple[str, str]]:
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    variables = ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    return [
        ("CPU", environment.cpu),
        ("CPUs usable", count(environment.cpus_usable)),
        ("Memory", formats.mebibytes(environment.memory_bytes)),
        *_driver_rows(environment),
        ("Platform", environment.platform),
        ("Python", environment.python),
        ("Packages", packages or UNKNOWN),
        ("Variables", variables or "none set"),
    ]


def _driver_rows(environment: EnvironmentPart) -> list[tuple[str, str]]:
    if environment.gpu_driver is None:
        return []
    return [("NVIDIA driver", f"{environment.gpu_driver}, CUDA {environment.cuda_driver}")]


def settings_section(results: Results) -> Section | None:
    """The settings of each arm, one column an arm; repetitions and further seeds have them too."""
    records = [record for record in results.main_records if record.training is not None]
    if not records:
        return None
    columns = [_settings(record) for record in records]
    rows = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    table = Table(
        caption="Settings in force",
        columns=("Setting", *(record.arm for record in records)),
        rows=rows,
    )
    blocks: list[Block] = [table]
    of_first = {record.training.seed for record in records if record.training}
    seeds = dict.fromkeys(r.training.seed for r in results.seed_records if r.training)
    if further := [str(seed) for seed in seeds if seed not in of_first]:
        blocks.append(Paragraph(text=f"Repeated with further seeds: {', '.join(further)}."))
    return Section(anchor="settings", title="Settings", blocks=tuple(blocks))


def _settings(record: Record) -> dict[str, str]:
    model, training = record.model, record.training
    assert training is not None
    shown = {
        "model": model.name if model else UNKNOWN,
        "parameters": count(model.parameters if model else None),
        "forward MFLOP per image": number(model.forward_flops_per_image / 1e6 if model else None),
    }
    settings = training.model_dump().items()
    return shown | {name.replace("_", " "): _setting(value) for name, value in settings}


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return UNKNOWN if value is None else str(value)


def commands_section(results: Results) -> Section:
    """The commands that repeat the study and each arm."""
    main = results.main_records
    commands = [(record.arm, record.command) for record in main]
    if results.study is not None:
        commands.insert(0, ("the whole study", results.study.command))
    blocks: list[Block] = [Commands(commands=tuple(commands))]
    further = tuple((r.arm, r.command) for r in results.records if r not in main)
    if further:
        summary = f"The other arms: repetitions, further seeds, variants ({len(further)})"
        blocks.append(Details(summary=summary, blocks=(Commands(commands=further),)))
    return Section(anchor="repeat", title="Repeat it", blocks=tuple(blocks))


def glossary_section(results: Results) -> Section:
    """How each figure was obtained."""
    terms = (
        ("images/s", "Images of a timed window over its time, skipped steps left out; the figure "
         "shown is the median of the arm's windows. A window is a run of consecutive steps between "
         "two clock readings, each taken after the device has finished its work. Warm-up windows "
         "are not counted."),
        ("speedup", "Images/s of AMP over that of fp32, from windows of two processes that were "
         "measured in turn, each beside its partner; above 1, AMP was faster. The brackets hold "
         f"its {100 * DISPLAY_CONFIDENCE:g} % interval, which covers how windows and how pairs of "
         f"processes differ; with fewer than {PRIOR_MATTERS_BELOW} pairs it rests on an assumption "
         "about the latter. "
         f"With fewer than {MIN_WINDOWS} windows an arm, or a window whose steps were all "
         "skipped, no ratio is given."),
        ("verdict", f"pays or slower: the {100 * DECISION_CONFIDENCE:g} % interval of the speedup "
         f"lies wholly above or below 1. no difference: the {100 * DISPLAY_CONFIDENCE:g} % "
         f"interval lies within ±{100 * results.margin:g} % of 1, the margin of this report "
         "(report --margin gives another). too noisy: none of these."),
        ("top-1, top-2", "Share of validation images whose class got the highest, or one of the "
         "two highest, of the network's outputs. Final weights, evaluated in float32."),
        ("loss", "Cross-entropy of the training batch at the step named; where the arms took "
         "different numbers of steps, at the last step that both took."),
        ("peak memory", "Highest number of bytes that the framework's allocator held on the "
         "device; without a device allocator, the highest resident memory of the process on the "
         "host. The two are not comparable with each other."),
        ("loss scale", "Factor on the loss that keeps small float16 gradients from becoming 0, "
         "after the last step. A step whose gradients overflow is skipped: the weights stay."),
        ("gap", "A difference of two finished arms of the same seed that took equal numbers of "
         "steps. Its interval is Student's t over the seeds' differences, with one degree of "
         "freedom less than there are seeds. Between seeds it is the range that holds 95 % of the "
         "differences of two further runs: t times the runs' standard deviation times √2."),
        ("confounds", "A difference between two arms that is neither the factor under test nor "
         "forced by the framework. Where there is one, no ratio is given."),
        ("threads in use", "CPU seconds of the process over wall seconds of the timed windows."),
        ("waited for data", "Share of the timed windows in which the loop had no batch to give "
         "to the device."),
        ("prepare, warm-up", "Time from the start of the process to the first step (import, "
         "build, first data); time of the warm-up windows (compilation, autotuning, first "
         "allocations). Neither counts in images/s."),
        ("dtype that ran", "Compute dtype of the convolutions as the graph or the kernels that "
         "were timed show it, not as it was asked for."),
        (UNKNOWN, "Not measured, or not known."),
    )  # fmt: skip
    return Section(
        anchor="figures", title="How each figure was obtained", blocks=(Terms(terms=terms),)
    )
