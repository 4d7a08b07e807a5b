"""Coarser weights: a graph's matrices as 8- or 4-bit integers that are multiplied as such.

What comes out is a graph of its own with its own sidecar. Whether it may be used is for the gate
in compare.py to say; whether the integers mean what the weights were, for ``check_packing``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.files import atomic_writer

_DOMAIN: Final = "com.microsoft"
_ALIGNMENT: Final = 4096  # a page: lets onnxruntime map each weight instead of copying it
_SMALL: Final = 1024  # bytes; below this a tensor stays in the graph, where its shape may matter
_ROWS: Final = 4096  # outputs of a matrix that are packed at once
_INT8_MAX: Final = 127
#: MatMulNBits' accuracy_level: activations become 8-bit integers as well. With 0 (float32) the
#: 8-bit kernel of onnxruntime 1.32 takes 50 times as long.
_INTEGER_ACTIVATIONS: Final = 4
#: Rows of a matrix that ``check_packing`` looks at.
_PROBES: Final = 16


@dataclass(frozen=True, slots=True)
class Form:
    """How matrices are stored and multiplied."""

    bits: int
    """8 or 4."""
    block_size: int | None = None
    """Inputs that share a scale, a power of two from 16 (MatMulNBits); None for one scale a tensor
    or output (DynamicQuantizeMatMul, 8 bits only)."""
    per_output: bool = True
    """Without blocks: every output has a scale of its own; else the whole matrix has one."""

    def __post_init__(self) -> None:
        if self.bits not in ((8,) if self.block_size is None else (4, 8)):
            raise ParameterError("bits", self.bits, "8, or 4 with a block size")
        if self.block_size is not None and (
            self.block_size < 16 or self.block_size & (self.block_size - 1)
        ):
            raise ParameterError("block_size", self.block_size, "a power of two, at least 16")


#: By the names that scripts and reports use.
FORMS: Final[Mapping[str, Form]] = {
    "int8-tensor": Form(8, per_output=False),
    "int8-output": Form(8),
    "nbits8": Form(8, 128),
    "nbits4": Form(4, 32),
}


@dataclass(frozen=True, slots=True)
class Packing:
    """How far a graph's integers, as onnxruntime reads them, are from the weights."""

    matrices: int
    """Quantized ones found."""
    worst_steps: float
    """Largest difference of a weight, in steps of its scale: 0.5 is rounding, 1 the edge of the
    range; more is another number."""
    relative_error: float
    """Root mean square of the difference over that of the weights."""
    worst: str
    """The matrix with the largest difference."""

    @property
    def right(self) -> bool:
        """The integers are those of the weights."""
        return self.matrices > 0 and self.worst_steps <= 1.01


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A linear layer whose weight is stored in float32."""

    node: onnx.NodeProto
    weight: str
    rows_first: bool
    """Stored as [out, in] rather than [in, out]."""


def quantize_graph(source: Path, output: Path, form: Form, *, head: bool = False) -> int:
    """Write a graph with its matrices in another form.

    Weights are read, packed and written one at a time.

    Args:
        source: a graph with float32 weights; its sidecar may be a link.
        output: gets the new graph, ``<output>_data`` its weights.
        form: how.
        head: the matrix that makes the logits as well; it is often kept, since it decides last.

    Returns:
        How many matrices were turned.

    Raises:
        GraphError: there is no matrix to turn, or no graph.
        ParameterError: ``output`` would overwrite ``source``.
    """
    if output.absolute() == source.absolute():
        raise ParameterError("output", str(output), "another file than the source")
    model = _load(source)
    graph, folder = model.graph, source.resolve().parent
    stored = {tensor.name: tensor for tensor in graph.initializer}
    matrices = {
        matrix.node.output[0]: matrix
        for matrix in _matrices(graph, stored)
        if head or not _makes_logits(graph, matrix.node.output[0])
    }
    if not matrices:
        raise GraphError(
            source, "has no float32 matrix to quantize", hint="use the graph as it was exported"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_writer(output.with_name(output.name + "_data")) as stream,
        atomic_writer(output) as graph_stream,
    ):
        sidecar = _Sidecar(stream, output.name + "_data")
        nodes, fresh = [], {}
        for node in graph.node:
            matrix = matrices.get(node.output[0])
            if matrix is None:
                nodes.append(node)
                continue
            values = _read(stored[matrix.weight], folder)
            made, tensors = _quantized(matrix, values if matrix.rows_first else values.T, form)
            nodes.append(made)
            for name, array in tensors.items():
                fresh[name] = sidecar.put(name, array)
        read = {name for node in nodes for name in node.input}
        kept = [tensor for name, tensor in stored.items() if name in read and name not in fresh]
        moved = [sidecar.put(tensor.name, _read(tensor, folder)) for tensor in kept]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.initializer.extend([*moved, *fresh.values()])
        if all(opset.domain != _DOMAIN for opset in model.opset_import):
            model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
        graph_stream.write(model.SerializeToString())
    return len(matrices)


def check_packing(source: Path, quantized: Path) -> Packing:
    """Let onnxruntime itself give back weights, and hold them against the originals.

    Each matrix is multiplied with rows that are one at one input and zero elsewhere, which are
    exact in integers too; so what comes out is that input's weights as the kernel reads them.

    Raises:
        GraphError: a file is no graph, or the two do not belong together.
    """
    originals = {tensor.name: tensor for tensor in _load(source).graph.initializer}
    layouts = {m.weight: m.rows_first for m in _matrices(_load(source).graph, originals)}
    graph = _load(quantized).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    folder, original_folder = quantized.resolve().parent, source.resolve().parent
    count, worst, worst_name, error, power = 0, 0.0, "", 0.0, 0.0
    for node in graph.node:
        if node.domain != _DOMAIN or not node.input[1].endswith(".integers"):
            continue
        weight = node.input[1].removesuffix(".integers")
        if weight not in layouts:
            raise GraphError(quantized, f"has a matrix {weight!r} that {source} does not have")
        original = _read(originals[weight], original_folder)
        rows = original.T if layouts[weight] else original
        arrays = {name: _read(stored[name], folder) for name in node.input[1:] if name}
        inputs = _spread(rows.shape[0])
        expected = np.asarray(rows[inputs], np.float32)
        found = _rows_as_run(node, arrays, rows.shape, inputs)
        difference = np.abs(found - expected)
        steps = difference / _steps(node, arrays, inputs)
        worst_here = float(steps.max()) if np.isfinite(steps).all() else float("inf")
        if worst_here > worst or not count:
            worst, worst_name = worst_here, weight
        count += 1
        error += float(np.square(difference, dtype=np.float64).sum())
        power += float(np.square(expected, dtype=np.float64).sum())
    return Packing(count, worst, float(np.sqrt(error / power)) if power else 0.0, worst_name)


def pack_blocks(
    weights: NDArray[np.floating[Any]], bits: int, block_size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Integers and scales as MatMulNBits takes them, symmetric around its default zero point.

    The number furthest from zero in a block becomes exactly the lowest integer, whatever its sign,
    so that all integers are used; numbers at the other end may be off by up to one step.

    Args:
        weights: [out, in].
        bits: 4 or 8.
        block_size: inputs that share a scale.

    Returns:
        uint8 [out, blocks, block_size * bits / 8] (4-bit: the first of two in the low half) and
        float32 scales [out, blocks].
    """
    num_outputs, num_inputs = weights.shape
    num_blocks = -(-num_inputs // block_size)
    blocks = np.zeros((num_outputs, num_blocks * block_size), np.float32)
    blocks[:, :num_inputs] = weights
    blocks = blocks.reshape(num_outputs, num_blocks, block_size)
    zero = 1 << (bits - 1)
    furthest = np.abs(blocks).argmax(axis=2)[:, :, None]
    extreme = np.take_along_axis(blocks, furthest, axis=2)
    scale = np.where(extreme == 0, np.float32(1), extreme / np.float32(-zero))
    integers = (np.rint(blocks / scale) + zero).clip(0, 2 * zero - 1).astype(np.uint8)
    if bits == 4:
        integers = np.bitwise_or(integers[:, :, ::2], integers[:, :, 1::2] << 4, dtype=np.uint8)
    return integers, scale[:, :, 0].astype(np.float32)


def pack_outputs(
    weights: NDArray[np.floating[Any]], *, per_output: bool
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers and scales as DynamicQuantizeMatMul takes them, symmetric around zero.

    Args:
        weights: [out, in].
        per_output: a scale for each output, else one for all.

    Returns:
        int8 [in, out] and float32 scales [out] or [].
    """
    peaks = np.array([np.abs(row).max(initial=0.0) for row in weights], np.float32)
    peaks = peaks if per_output else peaks.max(initial=0.0)
    scale = np.where(peaks > 0, peaks / np.float32(_INT8_MAX), np.float32(1)).astype(np.float32)
    integers = np.empty(weights.shape[::-1], np.int8)
    for first in range(0, len(weights), _ROWS):
        part = slice(first, first + _ROWS)
        divisor = scale[part, None] if per_output else scale
        integers[:, part] = np.rint(weights[part] / divisor).clip(-_INT8_MAX, _INT8_MAX).T
    return integers, scale


class _Sidecar:
    """Weights written one after another, each at the start of a page."""

    def __init__(self, stream: IO[bytes], location: str) -> None:
        self._stream = stream
        self._location = location

    def put(self, name: str, values: NDArray[Any]) -> TensorProto:
        """Write an array and describe where it lies; small ones go into the description."""
        if values.nbytes <= _SMALL:
            return numpy_helper.from_array(np.array(values, order="C"), name)
        tensor = TensorProto(
            name=name,
            dims=values.shape,
            data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        self._stream.write(bytes(-self._stream.tell() % _ALIGNMENT))
        start = self._stream.tell()
        for first in range(0, len(values), _ROWS):
            self._stream.write(np.ascontiguousarray(values[first : first + _ROWS]).data)
        length = self._stream.tell() - start
        entries = {"location": self._location, "offset": str(start), "length": str(length)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        return tensor


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise GraphError(path, f"is not a readable ONNX graph: {error}") from error


def _read(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """The values of a tensor; external ones as a read-only map of their file."""
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    info = external_data_helper.ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(
        folder / info.location, dtype, "r", offset=info.offset or 0, shape=tuple(tensor.dims)
    )


def _matrices(graph: onnx.GraphProto, stored: Mapping[str, TensorProto]) -> Iterator[_Matrix]:
    """The linear layers whose weights are plain float32 matrices."""
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in stored:
            continue
        tensor = stored[node.input[1]]
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2:
            continue
        options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        biased = len(node.input) > 2 and bool(node.input[2])
        if options.get("transA") or options.get("alpha", 1.0) != 1.0 or biased:
            continue
        yield _Matrix(node, tensor.name, bool(options.get("transB")))


def _makes_logits(graph: onnx.GraphProto, name: str) -> bool:
    """Whether a tensor is the logits, but for a change of shape."""
    if name == "logits":
        return True
    readers = [node for node in graph.node if name in node.input]
    return any(
        node.op_type in ("Unsqueeze", "Reshape", "Identity", "Cast")
        and _makes_logits(graph, node.output[0])
        for node in readers
    )


def _quantized(
    matrix: _Matrix, weights: NDArray[np.floating[Any]], form: Form
) -> tuple[onnx.NodeProto, dict[str, NDArray[Any]]]:
    """The node in place of a linear layer, and its tensors; ``weights`` is [out, in]."""
    names = [f"{matrix.weight}.integers", f"{matrix.weight}.scales"]
    inputs = [matrix.node.input[0], *names]
    options: dict[str, Any] = {}
    if form.block_size is None:
        op_type = "DynamicQuantizeMatMul"
        packed: Sequence[NDArray[Any]] = pack_outputs(weights, per_output=form.per_output)
    else:
        op_type = "MatMulNBits"
        parts = [
            pack_blocks(weights[first : first + _ROWS], form.bits, form.block_size)
            for first in range(0, len(weights), _ROWS)
        ]
        packed = [np.concatenate(column) for column in zip(*parts, strict=True)]
        options = {
            "K": weights.shape[1],
            "N": weights.shape[0],
            "bits": form.bits,
            "block_size": form.block_size,
            "accuracy_level": _INTEGER_ACTIVATIONS,
        }
    node = helper.make_node(
        op_type, inputs, matrix.node.output, matrix.node.name, domain=_DOMAIN, **options
    )
    return node, dict(zip(names, packed, strict=True))


def _spread(count: int) -> NDArray[np.int64]:
    """Some indices below ``count``: both ends, neighbours, and others all over."""
    middle = np.random.default_rng(0).integers(0, count, _PROBES)
    return np.unique(np.concatenate([[0, min(1, count - 1), count - 1], middle]))


def _rows_as_run(
    node: onnx.NodeProto,
    arrays: Mapping[str, NDArray[Any]],
    shape: tuple[int, ...],
    inputs: NDArray[np.int64],
) -> NDArray[np.float32]:
    """What a quantized layer gives for single inputs, float32 [len(inputs), out]."""
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    alone.input[0], alone.output[0] = "rows", "weights"
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [alone],
        "one_layer",
        [make("rows", TensorProto.FLOAT, [len(inputs), shape[0]])],
        [make("weights", TensorProto.FLOAT, [len(inputs), shape[1]])],
        [numpy_helper.from_array(np.array(v, order="C"), name) for name, v in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rows = np.zeros((len(inputs), shape[0]), np.float32)
    rows[np.arange(len(inputs)), inputs] = 1.0
    weights: NDArray[np.float32] = session.run(None, {"rows": rows})[0]
    return weights


def _steps(
    node: onnx.NodeProto, arrays: Mapping[str, NDArray[Any]], inputs: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The step of each weight of some inputs; broadcasts over [len(inputs), out]."""
    scales = np.abs(np.asarray(arrays[node.input[2]], np.float32))
    sizes = [each.i for each in node.attribute if each.name == "block_size"]
    if not sizes:
        return scales
    (num_outputs,) = (each.i for each in node.attribute if each.name == "N")
    by_input: NDArray[np.float32] = scales.reshape(num_outputs, -1)[:, inputs // sizes[0]].T
    return by_input
