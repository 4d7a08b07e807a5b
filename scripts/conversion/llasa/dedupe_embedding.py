"""A tied head stored twice -> stored once: the head reads the embedding.

    python -m scripts.conversion.llasa.dedupe_embedding model.onnx deduped/model.onnx

LLaMA's small models use one matrix as embedding [V, H] and, transposed, as head [H, V], and an
export stores both. The head MatMul becomes Reshape -> Gemm(transB=1) -> Unsqueeze over the
embedding, which saves V * H * 4 bytes: 7.07 -> 5.48 GB for Llasa-1B.
"""

from __future__ import annotations

import argparse
import logging
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.conversion.llasa.onnx_store import (
    Array,
    Source,
    load_graph,
    read_initializer,
    save_model,
    stored_externally,
)

logger = logging.getLogger(__name__)

ROWS = 4096  # of the embedding, compared at once


class NotTiedError(Exception):
    """The graph's head is not the transpose of its embedding, so there is nothing to share."""


def find_embedding(graph: onnx.GraphProto) -> str:
    """The initializer that `input_ids` looks up its rows in."""
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] == "input_ids":
            return str(node.input[0])
    raise NotTiedError("no Gather over input_ids: this is not a graph of export_llm")


def find_head(graph: onnx.GraphProto) -> onnx.NodeProto:
    """The MatMul that makes `logits`."""
    heads: list[onnx.NodeProto] = [node for node in graph.node if "logits" in node.output]
    if not heads:
        raise NotTiedError("no node makes logits: this is not a graph of export_llm")
    if heads[0].op_type != "MatMul":
        kind = heads[0].op_type
        raise NotTiedError(f"logits come from {kind}, not from a MatMul with a head of its own")
    return heads[0]


def require_transposes(embedding: Array, head: Array) -> None:
    """Raise NotTiedError unless `head` [H, V] is `embedding` [V, H] transposed, bit for bit."""
    if embedding.shape != head.shape[::-1] or embedding.dtype != head.dtype:
        raise NotTiedError(
            f"the head is {list(head.shape)} {head.dtype}, "
            f"the embedding {list(embedding.shape)} {embedding.dtype}: not transposes"
        )
    bits = f"u{embedding.dtype.itemsize}"  # so that NaN equals itself and -0.0 is not 0.0
    for first in range(0, len(embedding), ROWS):
        rows = np.ascontiguousarray(embedding[first : first + ROWS])
        columns = np.ascontiguousarray(head[:, first : first + ROWS].T)
        differing = np.count_nonzero(rows.view(bits) != columns.view(bits))
        if differing:
            raise NotTiedError(
                f"head and embedding differ in {differing} numbers of rows {first} to "
                f"{first + len(rows) - 1}: this checkpoint's head is not tied"
            )


def dedupe_embedding(source: Path, output: Path) -> None:
    """Write the graph at `source` to `output` with its head over its embedding.

    The logits are the same. Weights go from file to file in blocks; where `source` has a sidecar,
    `output` gets one of its own. Raises NotTiedError, and writes nothing, when the matrices are
    not transposes of one another, ValueError when `output` would overwrite `source`.
    """
    if output.absolute() == source.absolute():
        raise ValueError(f"{output}: cannot be rewritten in place, name another file")
    model = load_graph(source)
    graph = model.graph
    embedding_name, head = find_embedding(graph), find_head(graph)
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    head_name = head.input[1]
    read = partial(read_initializer, folder=source.parent)
    require_transposes(read(initializers[embedding_name]), read(initializers[head_name]))

    hidden_size = initializers[embedding_name].dims[1]
    constants = {"head/rows": [-1, hidden_size], "head/axis": [1]}
    nodes = [
        helper.make_node("Reshape", [head.input[0], "head/rows"], ["head/hidden"], "head/Reshape"),
        helper.make_node(
            "Gemm", ["head/hidden", embedding_name], ["head/logits"], "head/Gemm", transB=1
        ),
        helper.make_node("Unsqueeze", ["head/logits", "head/axis"], ["logits"], "head/Unsqueeze"),
    ]
    position = list(graph.node).index(head)
    kept = [*graph.node[:position], *nodes, *graph.node[position + 1 :]]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.remove(initializers.pop(head_name))
    graph.initializer.extend(
        numpy_helper.from_array(np.array(values, np.int64), name)
        for name, values in constants.items()
    )

    external = stored_externally(model)
    sources: dict[str, Source] = {}
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            original = TensorProto()
            original.CopyFrom(tensor)
            sources[tensor.name] = partial(read, original)
    save_model(model, output, sources, external=external)
    onnx.checker.check_model(str(output))
    logger.info("wrote %s", output)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="model.onnx of export_llm")
    parser.add_argument("output", type=Path, help="the .onnx file to write")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dedupe_embedding(arguments.source, arguments.output)


if __name__ == "__main__":
    main()
