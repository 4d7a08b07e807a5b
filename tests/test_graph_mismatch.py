"""What is not built like a LLaMA is refused, with the place and the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from graph_models import edit
from onnx import helper, numpy_helper

from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.graph.compact import compact_graph
from phoonnx_llasa.graph.dataflow import GraphMismatchError
from phoonnx_llasa.graph.llama import read_llama


def nodes_of(graph: onnx.GraphProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == op_type]


def insert_behind(
    graph: onnx.GraphProto, node: onnx.NodeProto, op_type: str, value: object
) -> None:
    """Put ``op_type(output, value)`` between a node and its readers."""
    graph.initializer.append(numpy_helper.from_array(np.float32(value), "inserted"))
    name = node.output[0]
    node.output[0] = "before"
    position = list(graph.node).index(node) + 1
    graph.node.insert(position, helper.make_node(op_type, ["before", "inserted"], [name]))


def add_bias(graph: onnx.GraphProto) -> None:
    node = nodes_of(graph, "MatMul")[0]
    width = next(t for t in graph.initializer if t.name == node.input[1]).dims[1]
    insert_behind(graph, node, "Add", np.ones(width))


def scale_scores(graph: onnx.GraphProto) -> None:
    softmax = nodes_of(graph, "Softmax")[1]
    producer = next(node for node in graph.node if softmax.input[0] in node.output)
    insert_behind(graph, producer, "Mul", 1.1)


def use_another_activation(graph: onnx.GraphProto) -> None:
    nodes_of(graph, "Sigmoid")[1].op_type = "Tanh"


def rotate_the_other_way(graph: onnx.GraphProto) -> None:
    for node in nodes_of(graph, "Neg")[-2:]:
        node.op_type = "Identity"


def divide_by_the_largest(graph: onnx.GraphProto) -> None:
    nodes_of(graph, "ReduceMean")[0].op_type = "ReduceMax"


def change_one_epsilon(graph: onnx.GraphProto) -> None:
    root = nodes_of(graph, "Sqrt")[1]
    add = next(node for node in graph.node if root.input[0] in node.output)
    graph.initializer.append(numpy_helper.from_array(np.float32(1e-3), "epsilon"))
    add.input[1] = "epsilon"


def subtract_from_the_stream(graph: onnx.GraphProto) -> None:
    """The first layer's attention is taken away from the residual stream."""
    additions = nodes_of(graph, "Add")
    next(node for node in additions if any("o_proj" in name for name in node.input)).op_type = "Sub"


def scale_the_logits(graph: onnx.GraphProto) -> None:
    insert_behind(graph, next(n for n in graph.node if "logits" in n.output), "Mul", 0.5)


def quantize_a_key_projection(graph: onnx.GraphProto) -> None:
    for node in nodes_of(graph, "MatMul"):
        if "k_proj" in node.input[1]:
            node.op_type, node.domain = "MatMulNBits", "com.microsoft"


def drop_a_layer_of_the_cache(graph: onnx.GraphProto) -> None:
    """The output of the first layer's keys is the second's."""
    first, second = (
        next(n for n in graph.node if f"present.{i}.key" in n.output) for i in range(2)
    )
    first.output[0], second.output[0] = "present.1.key", "present.0.key"
    for node in graph.node:
        if node is not first and node is not second:
            swap = {"present.0.key": "present.1.key", "present.1.key": "present.0.key"}
            node.input[:] = [swap.get(name, name) for name in node.input]


def see_the_future(graph: onnx.GraphProto) -> None:
    nodes_of(graph, "LessOrEqual")[0].op_type = "GreaterOrEqual"


@pytest.mark.parametrize(
    ("change", "place", "problem"),
    [
        (add_bias, "linear layer 0", "has a bias"),
        (scale_scores, "layer 1, attention", "differs from causal grouped-query attention"),
        (see_the_future, "layer 0, attention", "differs from causal grouped-query attention"),
        (use_another_activation, "layer 1, MLP", r"differs from SiLU\(gate\) \* up"),
        (rotate_the_other_way, "layer 1, attention", "rotated keys"),
        (divide_by_the_largest, "layer 0, input norm", "differs from an RMS norm"),
        (change_one_epsilon, "norms", "different epsilons"),
        (subtract_from_the_stream, "layer 0, after attention", "not added"),
        (scale_the_logits, "head", "not the output of the last linear layer"),
        (quantize_a_key_projection, "layer 0, key projection", "MatMulNBits"),
        (drop_a_layer_of_the_cache, "layer 0, key projection", "not made by one linear layer"),
    ],
)
def test_it_is_said_what_is_different_and_where(
    small_graphs: Path, tmp_path: Path, change: Callable, place: str, problem: str
) -> None:
    path = edit(small_graphs / "deduped" / "model.onnx", tmp_path / "edited", change)
    with pytest.raises(GraphMismatchError, match=problem) as caught:
        read_llama(path, max_positions=100)
    assert caught.value.place.startswith(place)
    assert caught.value.path == str(path)
    assert caught.value.place in str(caught.value)


def test_a_codec_is_no_llama(small_graphs: Path) -> None:
    with pytest.raises(GraphMismatchError, match=r"no past_key_values\.0\.key"):
        read_llama(small_graphs / "xcodec2_decoder.onnx", max_positions=100)


def test_a_file_that_is_no_graph_is_no_llama(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(GraphError, match="not a readable ONNX graph"):
        read_llama(path, max_positions=100)
    with pytest.raises(GraphError, match="not a readable ONNX graph"):
        read_llama(tmp_path / "missing.onnx", max_positions=100)


def test_weights_outside_of_the_folder_are_refused(small_graphs: Path, tmp_path: Path) -> None:
    def point_elsewhere(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = "../elsewhere"

    path = edit(small_graphs / "deduped" / "model.onnx", tmp_path / "edited", point_elsewhere)
    with pytest.raises(GraphError, match=r"outside of its folder: '\.\./elsewhere'"):
        read_llama(path, max_positions=100)


@pytest.mark.parametrize("rows", [(5, 4), (-1, 3), (0, 792)])
def test_rows_outside_of_the_vocabulary_are_refused(
    small_graphs: Path, rows: tuple[int, int]
) -> None:
    llama = read_llama(small_graphs / "deduped" / "model.onnx", max_positions=100)
    with pytest.raises(ParameterError, match="id from 0 to 791"):
        compact_graph(llama, rows=rows)
