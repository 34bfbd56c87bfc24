"""In which dtypes TensorFlow runs a step: the operations of the traced graph, layer by layer.

The dtype attributes of Keras layers do not tell: BatchNormalization under ``mixed_float16`` says
float16 and computes in float32.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from harness.protocol import LayerEvidence

if TYPE_CHECKING:
    import tensorflow as tf

# Casts, views and bookkeeping: they tell nothing about the dtype in which a layer computes.
_NO_COMPUTE = frozenset(
    {
        "Cast",
        "Identity",
        "Reshape",
        "Transpose",
        "Pad",
        "PadV2",
        "Squeeze",
        "ExpandDims",
        "Tile",
        "Slice",
        "StridedSlice",
        "BroadcastTo",
        "AssignVariableOp",
        "AssignAddVariableOp",
    }
)


def layer_evidence(graph: tf.Graph, layers: set[str]) -> dict[str, LayerEvidence]:
    """The computing operation of each of ``layers`` in ``graph``, forward and backward.

    Operations belong to the layer in whose name scope they lie: ``model/layer/…``, and
    ``gradient_tape/model/layer/…`` for the backward pass.
    """
    computing: dict[tuple[str, bool], Any] = {}
    outputs: dict[str, str] = {}
    for operation in graph.get_operations():
        layer, backward = place = layer_scope(operation.name, layers)
        if not layer:
            continue
        if operation.type not in _NO_COMPUTE and _float_dtypes(operation.inputs):
            computing.setdefault(place, operation)
        if not backward:
            for tensor in operation.outputs:
                users = {layer_scope(user.name, layers) for user in tensor.consumers()}
                leaves = any(not of_gradient and user != layer for user, of_gradient in users)
                if leaves and tensor.dtype.is_floating:
                    outputs[layer] = tensor.dtype.name
    found: dict[str, LayerEvidence] = {}
    for (layer, backward), operation in computing.items():
        if backward or layer not in outputs:
            continue
        gradient = computing.get((layer, True))
        found[layer] = LayerEvidence(
            operation=operation.type,
            compute=_float_dtypes(operation.inputs)[0],
            output=outputs[layer],
            backward=_float_dtypes(gradient.inputs)[0] if gradient is not None else None,
        )
    return found


def layer_scope(name: str, layers: set[str]) -> tuple[str, bool]:
    """The layer an operation belongs to (empty outside of one), and whether it is a gradient's."""
    scopes = name.split("/")
    backward = scopes[0] == "gradient_tape"
    inner = scopes[1 + backward :]
    # A graph tells scopes of the same name apart by a number at the end.
    layer = re.sub(r"_\d+$", "", inner[0]) if inner else ""
    return (layer if layer in layers else "", backward)


def _float_dtypes(tensors: Any) -> list[str]:
    return [tensor.dtype.name for tensor in tensors if tensor.dtype.is_floating]
