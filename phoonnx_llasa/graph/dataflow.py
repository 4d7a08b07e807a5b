"""What flows where in a graph: producers, readers, and which tensors carry the hidden state."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, helper, inliner, numpy_helper

from phoonnx_llasa.errors import GraphError
from phoonnx_llasa.files import is_plain_name

#: Nodes that hand a tensor on with the same numbers in the same order.
_SAME_NUMBERS = {"Identity", "Reshape", "Flatten", "Unsqueeze", "Squeeze", "Cast", "Dropout"}
#: Elements of a constant that may be a shape or a list of axes.
_SMALL = 64
#: Nodes that read a tensor's shape but not its numbers.
_READS_SHAPE = {"Shape", "Size"}


class GraphMismatchError(GraphError):
    """A graph is not built like a LLaMA; ``place`` says where, ``problem`` what was found."""

    def __init__(self, path: Path | str, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(path, f"cannot be read as a LLaMA: {place}: {problem}")


class Kind(IntEnum):
    """What a tensor depends on; of several inputs the largest counts."""

    CONSTANT = 0
    """Only on what is stored in the graph: a weight."""
    PLACE = 1
    """On positions, masks and sizes: rotary angles, attention masks, shapes."""
    HIDDEN = 2
    """On what the tokens are: hidden states, keys and values."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix of a linear layer, or a vector, where it lies in the graph."""

    name: str
    """Tensor that holds it; an initializer unless ``storage`` says otherwise."""
    shape: tuple[int, ...]
    """As the layer uses it: [in, out] of a matrix, [rows, width] of an embedding."""
    transposed: bool = False
    """The tensor is stored as the transpose of ``shape``."""
    storage: str = ""
    """Empty for float32 as it is, else what it is made from, such as ``int8 behind Cast, Mul``."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a graph between tensors."""

    nodes: list[onnx.NodeProto]
    """In the graph's order."""
    by_value: list[str]
    """Cuts and graph inputs whose numbers the part reads."""
    by_shape: list[str]
    """Cuts and graph inputs of which only the shape matters."""


class Dataflow:
    """An index over the nodes of one graph.

    Attributes:
        path: for messages.
        model: the graph, external weights not loaded.
        initializers: stored tensors by name.
        kinds: what every tensor depends on.
        data_folder: where the files of the external weights really lie.
    """

    def __init__(self, model: onnx.ModelProto, path: Path) -> None:
        """Index a graph; the locations of its external weights become those behind any links.

        Raises:
            GraphMismatchError: it branches or loops over hidden states.
        """
        self.model = model
        self.path = path
        self.nodes = list(model.graph.node)
        self.data_folder = _follow_links(model.graph, path)
        self.initializers: Mapping[str, TensorProto] = {
            tensor.name: tensor for tensor in model.graph.initializer
        }
        self.inputs = [
            value.name for value in model.graph.input if value.name not in self.initializers
        ]
        self._position = {
            name: position
            for position, node in enumerate(self.nodes)
            for name in node.output
            if name
        }
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self.kinds = self._find_kinds()

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a tensor; None for inputs and initializers."""
        position = self._position.get(name)
        return None if position is None else self.nodes[position]

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a tensor."""
        return self._readers.get(name, [])

    def kind(self, name: str) -> Kind:
        """What a tensor depends on."""
        return self.kinds.get(name, Kind.CONSTANT)

    def hidden_inputs(self, node: onnx.NodeProto) -> list[str]:
        """The inputs of a node that carry hidden state by their numbers."""
        if node.op_type in _READS_SHAPE:
            return []
        return [name for name in node.input if self.kind(name) is Kind.HIDDEN]

    def origin(self, name: str) -> str:
        """Walk back over nodes that only rename, reshape or cast a tensor."""
        node = self.producer(name)
        while node is not None and node.op_type in _SAME_NUMBERS:
            name = node.input[0]
            node = self.producer(name)
        return name

    def same_numbers(self, name: str) -> list[str]:
        """A tensor and all tensors that only rename, reshape or cast it."""
        names = [name]
        for known in names:
            names += [
                node.output[0]
                for node in self.readers(known)
                if node.op_type in _SAME_NUMBERS and node.input[0] == known
            ]
        return names

    def weight(self, name: str) -> Weight:
        """Describe a constant tensor, looking through renamings and transposes.

        Raises:
            GraphMismatchError: its shape cannot be told.
        """
        transposed = False
        while (node := self.producer(name)) is not None:
            if node.op_type == "Transpose" and attributes(node).get("perm", [1, 0]) == [1, 0]:
                transposed = not transposed
            elif node.op_type != "Identity":
                break
            name = node.input[0]
        if node is None:
            tensor = self.initializers[name]
            shape = tuple(tensor.dims)
            storage = "" if tensor.data_type == TensorProto.FLOAT else _type_name(tensor)
        else:
            shape, storage = self._expression(name)
        return Weight(name, shape[::-1] if transposed else shape, transposed, storage)

    def region(self, outputs: Iterable[str], *, cuts: Container[str]) -> Region:
        """Everything that some tensors are made from, back to the cuts and the graph's inputs.

        Args:
            outputs: the tensors.
            cuts: tensors not to look behind.
        """
        positions: set[int] = set()
        by_value: dict[str, None] = {}
        by_shape: dict[str, None] = {}
        # What is only read for its shape is walked with the flag off; a later walk with the flag
        # on covers the same ground again.
        stack = [(name, True) for name in outputs]
        seen: set[tuple[str, bool]] = set()
        while stack:
            name, for_value = stack.pop()
            if not name or (name, for_value) in seen or (name, True) in seen:
                continue
            seen.add((name, for_value))
            position = self._position.get(name)
            if position is None or (name in cuts):
                if name not in self.initializers:
                    (by_value if for_value else by_shape)[name] = None
                continue
            node = self.nodes[position]
            positions.add(position)
            for_value = for_value and node.op_type not in _READS_SHAPE
            stack += [(source, for_value) for source in node.input]
        return Region(
            [self.nodes[position] for position in sorted(positions)],
            list(by_value),
            [name for name in by_shape if name not in by_value],
        )

    def _expression(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and make of a constant tensor that is computed from others."""
        nodes = self.region([name], cuts=()).nodes
        stored = {s: self.initializers[s] for n in nodes for s in n.input if s in self.initializers}
        model = helper.make_model(
            helper.make_graph(
                nodes,
                "weight",
                [helper.make_tensor_value_info(s, t.data_type, t.dims) for s, t in stored.items()],
                [onnx.ValueInfoProto(name=name)],
                # small ones may be shapes or axes, whose numbers inference has to know
                [t for t in stored.values() if numpy_size(t) <= _SMALL and not _is_external(t)],
            ),
            opset_imports=self.model.opset_import,
        )
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        tensor_type = inferred.graph.output[0].type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor_type.shape.dim)
        if not tensor_type.HasField("shape") or not all(shape):
            raise GraphMismatchError(self.path, f"weight {name!r}", "its shape cannot be told")
        largest = max(stored.values(), key=numpy_size)
        kinds = ", ".join(dict.fromkeys(node.op_type for node in nodes))
        return shape, f"{_type_name(largest)} behind {kinds}"

    def _find_kinds(self) -> dict[str, Kind]:
        kinds: dict[str, Kind] = {}
        for name in self.inputs:
            places = name in ("attention_mask", "position_ids")
            kinds[name] = Kind.PLACE if places else Kind.HIDDEN
        for node in self.nodes:
            found = max((kinds.get(name, Kind.CONSTANT) for name in node.input), default=Kind(0))
            if any(a.HasField("g") or a.graphs for a in node.attribute):
                raise GraphMismatchError(
                    self.path, f"node {node.op_type}", "holds a branch or a loop"
                )
            if node.op_type in _READS_SHAPE:
                found = min(found, Kind.PLACE)
            for name in node.output:
                kinds[name] = found
        return kinds


def load_dataflow(path: Path) -> Dataflow:
    """Read a graph without its external weights and index it.

    Raises:
        GraphError: the file is no ONNX graph.
        GraphMismatchError: it branches or loops.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise GraphError(path, f"is not a readable ONNX graph: {error}") from error
    if model.functions:
        model = inliner.inline_local_functions(model)
    _constants_to_initializers(model.graph)
    return Dataflow(model, path)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def numpy_size(tensor: TensorProto) -> int:
    """Number of elements of a stored tensor."""
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes that a stored tensor's numbers take."""
    itemsize: int = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return numpy_size(tensor) * itemsize


def used_initializers(
    nodes: Iterable[onnx.NodeProto], initializers: Mapping[str, TensorProto]
) -> dict[str, TensorProto]:
    """The initializers that nodes read, in the order of reading."""
    return {
        name: initializers[name] for node in nodes for name in node.input if name in initializers
    }


def _follow_links(graph: onnx.GraphProto, path: Path) -> Path:
    """Name the files behind the links of the hub's cache, which onnxruntime may refuse.

    Returns:
        The folder that all of them lie in; the graph's own if there are none.

    Raises:
        GraphError: they lie in different folders, or are named by a path.
    """
    folders = set()
    names: dict[str, str] = {}
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                if not is_plain_name(entry.value):
                    raise GraphError(path, f"keeps weights outside of its folder: {entry.value!r}")
                if entry.value not in names:
                    file = (path.parent / entry.value).resolve()
                    folders.add(file.parent)
                    names[entry.value] = file.name
                entry.value = names[entry.value]
    if len(folders) > 1:
        raise GraphError(path, "keeps its weights in several folders")
    return folders.pop() if folders else path.parent


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes into initializers, so that there is one kind of constant."""
    kept = []
    for node in graph.node:
        if node.op_type != "Constant":
            kept.append(node)
            continue
        value = node.attribute[0]
        if value.name == "value":
            tensor = TensorProto()
            tensor.CopyFrom(value.t)
        elif value.name in ("value_int", "value_ints", "value_float", "value_floats"):
            tensor = numpy_helper.from_array(_as_array(value))
        else:
            kept.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    del graph.node[:]
    graph.node.extend(kept)


def _as_array(attribute: onnx.AttributeProto) -> Any:
    whole = attribute.name.startswith("value_int")
    return np.asarray(
        helper.get_attribute_value(attribute), dtype=np.int64 if whole else np.float32
    )


def _is_external(tensor: TensorProto) -> bool:
    external: bool = external_data_helper.uses_external_data(tensor)
    return external


def _type_name(tensor: TensorProto) -> str:
    name: str = TensorProto.DataType.Name(tensor.data_type)
    return name.lower()
