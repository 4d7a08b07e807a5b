"""ONNX models whose weights are read and written a piece at a time.

`onnx.load` and `onnx.save` hold every weight in memory, twice while converting. Here a model is
its graph plus a source for each weight, and a weight is only in memory while it is being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from scripts.conversion.llasa.files import whole_files

Array = npt.NDArray[np.generic]
Source = Callable[[], Array]

DATA_SUFFIX = "_data"  # model.onnx -> model.onnx_data, the layout of the published bundle
ALIGNMENT = 4096  # a page: lets onnxruntime map each weight instead of copying it
INLINE_LIMIT = 1_900_000_000  # bytes; a protobuf message, weights included, ends at 2 GiB
SMALL = 1024  # bytes; below this a weight stays in the graph, where shape inference reads it
BLOCK = 64 << 20  # bytes that are converted and written at once


def load_graph(path: Path) -> onnx.ModelProto:
    """The model at `path` with its external weights left where they are."""
    return onnx.load(path, load_external_data=False)


def read_initializer(tensor: TensorProto, folder: Path) -> Array:
    """The values of an initializer; external ones as a read-only map of the sidecar in `folder`.

    Raises ValueError when the sidecar is shorter than the tensor.
    """
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    info = external_data_helper.ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(
        folder / info.location, dtype, "r", offset=info.offset or 0, shape=tuple(tensor.dims)
    )


def stored_externally(model: onnx.ModelProto) -> bool:
    """Whether any weight of the model lies in a sidecar."""
    return any(map(external_data_helper.uses_external_data, model.graph.initializer))


def declare(name: str, shape: tuple[int, ...], data_type: int = TensorProto.FLOAT) -> TensorProto:
    """An initializer without values, for `save_model` to fill from a source."""
    return TensorProto(name=name, dims=shape, data_type=data_type)


def fold_constants(model: onnx.ModelProto) -> None:
    """Replace every node whose inputs are all constants by its value, in place."""
    graph = model.graph
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        if all(name in known for name in node.input if name):
            alone = helper.make_graph(
                [node],
                "constant",
                [helper.make_empty_tensor_value_info(name) for name in node.input],
                [helper.make_empty_tensor_value_info(name) for name in node.output],
            )
            evaluator = ReferenceEvaluator(
                helper.make_model(alone, opset_imports=model.opset_import)
            )
            feeds = {name: known[name] for name in node.input}
            known |= dict(zip(node.output, evaluator.run(None, feeds), strict=True))
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input}
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in known.items()
        if name in used
    ]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend(constants)


def save_model(
    model: onnx.ModelProto,
    path: Path,
    sources: Mapping[str, Source],
    *,
    external: bool | None = None,
) -> None:
    """Write `model` to `path`, the initializers named in `sources` with the values of theirs.

    `external` puts weights into `<path>_data` beside it; None does so only when they would not
    fit into the graph. Initializers that have values of their own keep them. Both files appear
    whole or not at all.
    Raises ValueError when a source is for no initializer or of another shape.
    """
    names = {tensor.name for tensor in model.graph.initializer}
    if unknown := sources.keys() - names:
        raise ValueError(f"no initializer {', '.join(sorted(unknown))} in the graph")
    if external is None:
        external = sum(map(_size, model.graph.initializer)) > INLINE_LIMIT
    data_path = path.with_name(path.name + DATA_SUFFIX)
    # The sidecar comes first: a graph is never there without its weights.
    with whole_files(data_path, path) as (data_part, part):
        in_graph = [tensor for tensor in model.graph.initializer if tensor.name in sources]
        for tensor in in_graph:
            tensor.data_location = TensorProto.DEFAULT
            tensor.ClearField("external_data")
        if external:
            beside = [tensor for tensor in in_graph if _size(tensor) > SMALL]
            in_graph = [tensor for tensor in in_graph if _size(tensor) <= SMALL]
            with data_part.open("wb") as file:
                for tensor in beside:
                    file.write(bytes(-file.tell() % ALIGNMENT))
                    start = file.tell()
                    for block in _blocks(tensor, sources[tensor.name]()):
                        file.write(block)
                    _refer(tensor, data_path.name, start, file.tell() - start)
        for tensor in in_graph:
            tensor.raw_data = b"".join(_blocks(tensor, sources[tensor.name]()))
        part.write_bytes(model.SerializeToString())
    if not external:
        data_path.unlink(missing_ok=True)


def _size(tensor: TensorProto) -> int:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(np.prod(tensor.dims, dtype=np.int64)) * dtype.itemsize


def _blocks(tensor: TensorProto, values: Array) -> Iterator[bytes]:
    """The little-endian bytes of `values` in the type of `tensor`, in row blocks."""
    if values.shape != tuple(tensor.dims):
        raise ValueError(f"{tensor.name} is {list(values.shape)}, expected {list(tensor.dims)}")
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
    if not values.ndim:
        yield values.astype(dtype).tobytes()
        return
    row = max(1, dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))
    step = max(1, BLOCK // row)
    for first in range(0, len(values), step):
        yield np.ascontiguousarray(values[first : first + step], dtype).tobytes()


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
