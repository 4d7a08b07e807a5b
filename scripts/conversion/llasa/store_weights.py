"""Weights stored in half precision or 8 bits, computed with in float32.

    python -m scripts.conversion.llasa.store_weights model.onnx small/model.onnx --form int8

The graph turns its weights back into float32 in front of their use (Cast, or Cast and Mul), which
onnxruntime does once, while loading. So the file shrinks to a half or a quarter; speed and memory
stay those of float32. The cosine and sine tables of an XCodec2 graph (6.6 MB) become the few
nodes that compute them.
"""

from __future__ import annotations

import argparse
import logging
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.conversion.llasa.export_xcodec2 import column_order, inverse_real_dft
from scripts.conversion.llasa.onnx_store import (
    Array,
    Source,
    declare,
    load_graph,
    read_initializer,
    save_model,
    stored_externally,
)

logger = logging.getLogger(__name__)

Form = Literal["fp16", "int8"]

SMALLEST: Final = 4096  # weights; what is smaller stays float32, it is less than 1 % of a model
TABLE_VALUES: Final = 16  # different numbers; FSQ has as many as its dimensions have levels
COSINE, SINE = "decoder.head.cosine", "decoder.head.sine"
IDENTITY = "decoder.head.identity"


def quantize_rows(
    weights: npt.NDArray[np.float32], axis: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric 8-bit integers and float32 scales, one per index of `axis` (an output).

    Returns int8 of the shape of `weights` and scales that broadcast over it;
    `|integer * scale - weight|` is at most half a scale, which is the row's peak / 127.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    peak = np.abs(weights).max(axis=others, keepdims=True)
    scale = (np.where(peak > 0, peak, 1.0) / 127).astype(np.float32)
    return np.rint(weights / scale).clip(-127, 127).astype(np.int8), scale


def store_weights(source: Path, output: Path, form: Form) -> None:
    """Write the graph at `source` to `output` with its matrices in `form`.

    Tables, which half precision holds without loss, are stored so in either form. Weights are
    read, turned and written one at a time; a sidecar stays a sidecar. Raises ValueError when
    `output` would overwrite `source`.
    """
    if output.absolute() == source.absolute():
        raise ValueError(f"{output}: cannot be rewritten in place, name another file")
    model = load_graph(source)
    graph = model.graph
    external = stored_externally(model)
    read = partial(read_initializer, folder=source.parent)
    fresh = _replace_tables(graph)
    sources: dict[str, Source] = {}
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        size = int(np.prod(tensor.dims, dtype=np.int64))
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2 or size < SMALLEST:
            if tensor.data_location == TensorProto.EXTERNAL:
                original = TensorProto()
                original.CopyFrom(tensor)
                sources[tensor.name] = partial(read, original)
            kept.append(tensor)
            continue
        name, shape = tensor.name, tuple(tensor.dims)
        if form == "fp16" or _is_table(read(tensor)):
            kept.append(declare(f"{name}:fp16", shape, TensorProto.FLOAT16))
            sources[f"{name}:fp16"] = partial(_half, partial(read, tensor))
            fresh.append(_to_float32(f"{name}:fp16", name))
            continue
        axis = _output_axis(graph, name, len(shape))
        scale_shape = tuple(size if i == axis else 1 for i, size in enumerate(shape))
        kept += [
            declare(f"{name}:int8", shape, TensorProto.INT8),
            declare(f"{name}:scale", scale_shape),
        ]
        for part, suffix in enumerate(("int8", "scale")):
            sources[f"{name}:{suffix}"] = partial(_quantized, partial(read, tensor), axis, part)
        fresh += [
            _to_float32(f"{name}:int8", f"{name}:float"),
            helper.make_node("Mul", [f"{name}:float", f"{name}:scale"], [name], f"{name}:Mul"),
        ]
    nodes = [*fresh, *graph.node]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    save_model(model, output, sources, external=external)
    onnx.checker.check_model(str(output))
    logger.info("wrote %s (%.2f MB)", output, output.stat().st_size / 1e6)


def _replace_tables(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Take the tables of `RealISTFTHead` out of the graph; returns the nodes that make them.

    An entry is weight[bin] * cos(2 pi / n_fft * (bin * sample mod n_fft)) * window[sample], and
    -sin is the cosine a quarter of a turn on, so the rows and columns and one turn are enough.
    A graph without such tables, or with others, is left alone.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    if not {COSINE, SINE, IDENTITY} <= tensors.keys():
        return []
    stored = {name: numpy_helper.to_array(tensors[name]) for name in (COSINE, SINE)}
    n_fft, overlap = tensors[COSINE].dims[1], tensors[IDENTITY].dims[2]
    samples = column_order(n_fft, overlap)
    window = 0.5 - 0.5 * np.cos(2 * np.pi / n_fft * samples)
    cosine, sine = (matrix[:, samples] * window for matrix in inverse_real_dft(n_fft))
    if n_fft % 4 or not (
        np.array_equal(stored[COSINE], cosine.astype(np.float32))
        and np.array_equal(stored[SINE], sine.astype(np.float32))
    ):
        return []
    bins = np.arange(n_fft // 2 + 1)
    weight = np.where((bins == 0) | (bins == n_fft // 2), 1.0, 2.0) / n_fft
    constants = {
        "dft/turn": np.cos(2 * np.pi / n_fft * np.arange(n_fft)).astype(np.float32),
        "dft/n_fft": np.array(n_fft),
        "dft/quarter": np.array(n_fft // 4),
        "dft/bins": bins[:, None],
        "dft/samples": samples[None],
        "dft/window": window[None].astype(np.float32),
        "dft/cosine_weight": weight[:, None].astype(np.float32),
        "dft/sine_weight": np.where(weight == weight[0], 0.0, weight)[:, None].astype(np.float32),
    }
    for name in (COSINE, SINE):
        graph.initializer.remove(tensors[name])
    graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
    nodes = [
        helper.make_node("Mul", ["dft/bins", "dft/samples"], ["dft/product"]),
        helper.make_node("Add", ["dft/product", "dft/quarter"], ["dft/ahead"]),
    ]
    for name, angle in ((COSINE, "dft/product"), (SINE, "dft/ahead")):
        side = name.rsplit(".", 1)[-1]
        nodes += [
            helper.make_node("Mod", [angle, "dft/n_fft"], [f"dft/{side}_index"]),
            helper.make_node("Gather", ["dft/turn", f"dft/{side}_index"], [f"dft/{side}_turn"]),
            helper.make_node(
                "Mul", [f"dft/{side}_turn", f"dft/{side}_weight"], [f"dft/{side}_bare"]
            ),
            helper.make_node("Mul", [f"dft/{side}_bare", "dft/window"], [name]),
        ]
    return nodes


def _output_axis(graph: onnx.GraphProto, name: str, rank: int) -> int:
    """Which axis of a weight belongs to the outputs: the last of a MatMul's, else the first."""
    uses = [node for node in graph.node if name in node.input]
    return rank - 1 if all(node.op_type == "MatMul" for node in uses) else 0


def _is_table(weights: Array) -> bool:
    """Whether these are a few simple numbers over and over (a codebook, ones and zeros)."""
    values = np.unique(weights)
    return len(values) <= TABLE_VALUES and bool(np.array_equal(values.astype(np.float16), values))


def _half(read: Source) -> Array:
    return read().astype(np.float16)


def _quantized(read: Source, axis: int, part: int) -> Array:
    return quantize_rows(read().astype(np.float32, copy=False), axis)[part]


def _to_float32(name: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [name], [result], f"{name}:Cast", to=TensorProto.FLOAT)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="a float32 .onnx file")
    parser.add_argument("output", type=Path, help="the .onnx file to write")
    parser.add_argument("--form", choices=("fp16", "int8"), default="int8")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    store_weights(arguments.source, arguments.output, arguments.form)


if __name__ == "__main__":
    main()
