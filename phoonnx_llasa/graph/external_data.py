"""Where the weights of a graph lie outside of it, and whether they are all there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from phoonnx_llasa.errors import GraphError
from phoonnx_llasa.files import is_file, is_plain_name


def external_extents(model: Path) -> Mapping[str, int]:
    """Bytes that each sidecar file of a graph must have at least.

    Args:
        model: the graph; its weights are not read.

    Returns:
        Sidecar file name (relative to the graph's folder) -> offset + length of its last tensor.

    Raises:
        GraphError: the file is no ONNX graph, or names a sidecar outside of its own folder.
    """
    try:
        graph = onnx.load(str(model), load_external_data=False).graph
    except (DecodeError, OSError, ValueError) as error:
        raise GraphError(model, f"is not a readable ONNX graph: {error}") from error
    if not graph.node:
        raise GraphError(model, "holds no nodes", hint="the file is damaged; fetch it again")
    extents: dict[str, int] = {}
    for tensor in _tensors(graph):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not is_plain_name(location):
            raise GraphError(model, f"keeps weights outside of its folder: {location!r}")
        try:
            end = int(entries.get("offset", "0")) + int(entries.get("length", "0"))
        except ValueError as error:
            raise GraphError(model, f"tensor {tensor.name!r} has a broken extent") from error
        extents[location] = max(extents.get(location, 0), end)
    return extents


def check_sidecars(model: Path) -> None:
    """Make sure that every sidecar file of a graph exists and is long enough.

    Raises:
        GraphError: a sidecar is missing or shorter than the graph needs.
    """
    for name, needed in external_extents(model).items():
        sidecar = model.parent / name
        if not is_file(sidecar):
            raise GraphError(
                sidecar, f"is missing; {model.name} keeps its weights there", hint="fetch it again"
            )
        size = sidecar.stat().st_size
        if size < needed:
            raise GraphError(
                sidecar,
                f"has {size:,} bytes, but {model.name} needs {needed:,}",
                hint="the download was cut short; delete it and fetch it again",
            )


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and (attribute.t.data_location == onnx.TensorProto.EXTERNAL):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
