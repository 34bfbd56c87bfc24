"""The section that shows in which dtypes each layer of each AMP arm was seen to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.networks import build_network, place_layers
from harness.records import Record
from reports import formats
from reports.blocks import Block, Details, Paragraph, Section, Table
from reports.cells import Results
from reports.evidence import UnreadableEvidence, read_evidence

if TYPE_CHECKING:
    from harness.protocol import Evidence, LayerEvidence

NAMED_LAYERS = 4
"""Layers of an exception that are named in the summary; the full list has them all."""

_KINDS = {
    "Conv": "convolution",
    "BatchNorm": "batch norm",
    "ReLU": "ReLU",
    "MaxPool": "max-pool",
    "GlobalAvgPool": "average pool",
    "Flatten": "flatten",
    "Linear": "linear",
    "Residual": "residual sum",
}
_SHOWN_FLAGS = {True: "on", False: "off", None: formats.UNKNOWN}


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers of one kind that every arm ran alike."""

    kind: str
    layers: tuple[str, ...]
    of_kind: int
    """How many layers of this kind there are in all."""
    dtypes: tuple[str, ...]
    """One text an arm."""

    @property
    def label(self) -> str:
        """The kind with a count, or with the names of the layers where they are the exception."""
        if len(self.layers) == self.of_kind:
            return f"{self.kind} ({self.of_kind})"
        if len(self.layers) * 2 > self.of_kind:
            return f"{self.kind} ({len(self.layers)} of {self.of_kind})"
        return f"{self.kind}: {_named(self.layers)}"


def cast_policy_section(results: Results) -> Section | None:
    """Dtypes by kind of layer, what stays in float32, weights and optimizer; all layers folded."""
    seen: dict[str, Evidence] = {}
    blocks: list[Block] = []
    for record in results.main_records:
        try:
            evidence = read_evidence(record)
        except UnreadableEvidence as error:
            text = f"{record.arm}: its evidence cannot be read: {error}."
            blocks.append(Paragraph(text=text, kind="warning"))
            continue
        if evidence is not None:
            seen[record.arm] = evidence
    amp = {r.arm: seen[r.arm] for r in results.main_records if _is_amp(r) and r.arm in seen}
    if not seen:
        return (
            Section(anchor="casts", title="Cast policy", blocks=tuple(blocks)) if blocks else None
        )
    layered = {arm: evidence for arm, evidence in amp.items() if evidence.layers}
    if layered:
        kinds = _kinds(results.main_records, layered)
        blocks += [Paragraph(text=text) for text in _kept(layered, kinds)]
        blocks += _tables(layered, kinds)
    blocks += [
        Paragraph(text=f"{arm}: no dtype of single layers was seen ({evidence.source}).")
        for arm, evidence in amp.items()
        if not evidence.layers
    ]
    blocks.append(_beyond_layers(results.main_records, seen))
    return Section(anchor="casts", title="Cast policy", blocks=tuple(blocks))


def layer_groups(
    arms: Mapping[str, Mapping[str, LayerEvidence]], kinds: Mapping[str, str]
) -> list[LayerGroup]:
    """Layers of a kind with the same dtypes in every arm, the largest group of a kind first.

    Args:
        arms: evidence of each layer, by arm.
        kinds: kind of every layer, in order.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for layer, kind in kinds.items():
        dtypes = tuple(_dtypes(layers.get(layer)) for layers in arms.values())
        groups.setdefault((kind, dtypes), []).append(layer)
    totals = {kind: sum(other == kind for other in kinds.values()) for kind in kinds.values()}
    found = [
        LayerGroup(kind=kind, layers=tuple(layers), of_kind=totals[kind], dtypes=dtypes)
        for (kind, dtypes), layers in groups.items()
    ]
    order = list(totals)
    return sorted(found, key=lambda group: (order.index(group.kind), -len(group.layers)))


def _is_amp(record: Record) -> bool:
    return record.precision.requested == "amp"


def _kinds(records: Sequence[Record], arms: Mapping[str, Evidence]) -> dict[str, str]:
    """Kind of each layer that any arm shows, in the order of the network."""
    named: dict[str, str] = {}
    for record in records:
        if record.model is None or record.data is None or record.training is None:
            continue
        try:
            network = build_network(
                record.model.name,
                classes=len(record.data.classes),
                image_size=record.training.image_size,
            )
        except ValueError:
            continue
        named |= {
            placed.layer.name: _KINDS[type(placed.layer).__name__]
            for placed in place_layers(network)
        }
    shown = dict.fromkeys(layer for evidence in arms.values() for layer in evidence.layers)
    known = {layer: kind for layer, kind in named.items() if layer in shown}
    return known | {layer: "layer" for layer in shown if layer not in known}


def _dtypes(layer: LayerEvidence | None) -> str:
    if layer is None:
        return "not seen"
    if layer.compute == layer.output == layer.backward:
        return layer.compute
    backward = f"; backward {layer.backward}" if layer.backward else "; backward not seen"
    return f"{layer.compute} → {layer.output}{backward}"


def _kept(arms: Mapping[str, Evidence], kinds: Mapping[str, str]) -> list[str]:
    """Which layers each arm computes in float32, in words."""
    found = []
    for arm, evidence in arms.items():
        kept: dict[str, list[str]] = {}
        for layer, kind in kinds.items():
            seen = evidence.layers.get(layer)
            if seen is not None and seen.compute == "float32":
                kept.setdefault(kind, []).append(layer)
        count = sum(map(len, kept.values()))
        parts = [f"{kind} ({_all_or_named(layers, kinds, kind)})" for kind, layers in kept.items()]
        found.append(
            f"{arm} keeps {count} of {len(evidence.layers)} layers in float32: {'; '.join(parts)}."
            if kept
            else f"{arm} keeps none of {len(evidence.layers)} layers in float32."
        )
    return found


def _all_or_named(layers: Sequence[str], kinds: Mapping[str, str], kind: str) -> str:
    total = sum(other == kind for other in kinds.values())
    return f"all {total}" if len(layers) == total and total > 1 else _named(layers)


def _named(layers: Sequence[str]) -> str:
    named = ", ".join(layers[:NAMED_LAYERS])
    more = len(layers) - NAMED_LAYERS
    return f"{named} and {more} more" if more > 0 else named


def _tables(arms: Mapping[str, Evidence], kinds: Mapping[str, str]) -> list[Block]:
    layers = {arm: evidence.layers for arm, evidence in arms.items()}
    summary = Table(
        caption="Dtypes by kind of layer: operands → output; operands of the backward operation. "
        "A single dtype holds for all three",
        columns=("Layers", *arms),
        rows=tuple((group.label, *group.dtypes) for group in layer_groups(layers, kinds)),
    )
    full = Table(
        caption="Each layer with the framework's own name of its operation",
        columns=("Layer", "Kind", *arms),
        rows=tuple(
            (layer, kind, *(_operation(seen.get(layer)) for seen in layers.values()))
            for layer, kind in kinds.items()
        ),
    )
    return [summary, Details(summary=f"Every layer ({len(kinds)})", blocks=(full,))]


def _operation(layer: LayerEvidence | None) -> str:
    return _dtypes(layer) if layer is None else f"{layer.operation}: {_dtypes(layer)}"


def _beyond_layers(records: Sequence[Record], seen: Mapping[str, Evidence]) -> Table:
    rows = tuple(
        (
            record.arm,
            evidence.effective,
            evidence.master_weight_dtype,
            evidence.gradient_dtype,
            f"{evidence.optimizer}, {evidence.optimizer_implementation}",
            _SHOWN_FLAGS[evidence.scaler_enabled],
            _SHOWN_FLAGS[record.precision.tf32],
            evidence.source,
        )
        for record in records
        if (evidence := seen.get(record.arm)) is not None
    )
    columns = (
        "Arm", "Convolutions ran in", "Master weights", "Gradients for the optimizer", "Optimizer",
        "Loss scaler", "TF32", "Read from",
    )  # fmt: skip
    return Table(caption="Weights, gradients and optimizer", columns=columns, rows=rows)
