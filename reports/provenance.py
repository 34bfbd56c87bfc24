"""Sections about where the figures come from: data, fairness, machine, settings, commands."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import DataPart, EnvironmentPart, Record
from reports import formats
from reports.blocks import Block, Commands, Paragraph, Section, Table, Terms
from reports.cells import Results
from reports.comparison import ComparisonRow
from reports.fairness import SAME_START_TOLERANCE, batch_groups, first_losses
from reports.formats import UNKNOWN, count, number
from reports.speedup import CONFIDENCE, MIN_WINDOWS


def same_experiment_section(results: Results, rows: Sequence[ComparisonRow]) -> Section:
    """Same batches, same first loss, and what differs between the two arms of a backend."""
    blocks: list[Block] = [_same_batches(results.records)]
    first = first_losses(results.records)
    if len(first) > 1 and len(batch_groups(results.records)) < 2:
        caption = f"First-step loss of the float32 arms (the same within {SAME_START_TOLERANCE:g})"
        table = Table(
            caption=caption,
            columns=("Backend", "Loss", "Relative difference"),
            rows=tuple(
                (
                    item.backend,
                    number(item.loss, digits=7),
                    "reference"
                    if item.relative_difference is None
                    else number(item.relative_difference, digits=2),
                )
                for item in first
            ),
            numeric=True,
        )
        blocks.append(table)
    found = tuple(
        (row.backend, d.setting, d.left, d.right, d.role) for row in rows for d in row.differences
    )
    if found:
        columns = ("Backend", "Setting", "fp32", "AMP", "Role")
        caption = "What differs between fp32 and AMP besides precision"
        blocks.append(Table(caption=caption, columns=columns, rows=found))
    elif any(row.fp32.status == "ok" and row.amp.status == "ok" for row in rows):
        blocks.append(Paragraph(text="Nothing but precision differs between the arms compared."))
    return Section(anchor="same", title="Same experiment?", blocks=tuple(blocks))


def _same_batches(records: Sequence[Record]) -> Paragraph:
    groups = batch_groups(records)
    unknown = [r.arm for r in records if r.data is not None and r.data.batch_sha256 is None]
    rest = f" Not recorded for {', '.join(unknown)}." if unknown else ""
    if not groups:
        return Paragraph(text="Whether the arms were given the same batches was not recorded.")
    if len(groups) == 1:
        digest, arms = next(iter(groups.items()))
        text = (
            f"All {len(arms)} arms with a recorded hash were given the same first batches "
            f"(SHA-256 over pixels, labels and ids: {digest})."
            if len(arms) > 1
            else f"First batches of {arms[0]}: SHA-256 {digest}."
        )
        return Paragraph(text=text + rest)
    parts = "; ".join(f"{', '.join(arms)}: {digest}" for digest, arms in groups.items())
    text = f"The arms were NOT given the same first batches (SHA-256): {parts}."
    return Paragraph(text=text + rest, kind="warning")


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
        ("Platform", environment.platform),
        ("Python", environment.python),
        ("Packages", packages or UNKNOWN),
        ("Variables", variables or "none set"),
    ]


def settings_section(results: Results) -> Section | None:
    """The settings of each arm, one column an arm."""
    records = [record for record in results.records if record.training is not None]
    if not records:
        return None
    columns = [_settings(record) for record in records]
    rows = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    table = Table(
        caption="Settings in force",
        columns=("Setting", *(record.arm for record in records)),
        rows=rows,
    )
    return Section(anchor="settings", title="Settings", blocks=(table,))


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
    commands = [(record.arm, record.command) for record in results.records]
    if results.study is not None:
        commands.insert(0, ("the whole study", results.study.command))
    return Section(anchor="repeat", title="Repeat it", blocks=(Commands(commands=tuple(commands)),))


def glossary_section() -> Section:
    """How each figure was obtained."""
    terms = (
        ("images/s", "Images of a timed window over its time, skipped steps left out; the figure "
         "shown is the median of the arm's windows. A window is a run of consecutive steps between "
         "two clock readings, each taken after the device has finished its work. Warm-up windows "
         "are not counted."),
        ("speedup", "Median images/s of AMP over that of fp32; above 1, AMP was faster. The "
         f"brackets hold a {100 * CONFIDENCE:.0f} % percentile bootstrap interval: the windows of "
         "each arm are resampled on their own. It holds within this one pair of processes and says "
         "nothing of how much processes differ. With fewer than five windows in an arm it "
         f"covers less than it says (three: about 89 %); with fewer than {MIN_WINDOWS} no ratio is "
         "given."),
        ("top-1, top-2", "Share of validation images whose class got the highest, or one of the "
         "two highest, of the network's outputs. Final weights, evaluated in float32."),
        ("loss", "Cross-entropy of the training batch at the step named; where the arms took "
         "different numbers of steps, at the last step that both took."),
        ("peak memory", "Highest number of bytes that the framework's allocator held on the "
         "device; without a device allocator, the highest resident memory of the process on the "
         "host. The two are not comparable with each other."),
        ("loss scale", "Factor on the loss that keeps small float16 gradients from becoming 0, "
         "after the last step. A step whose gradients overflow is skipped: the weights stay."),
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
