"""A LLaMA as a compact graph over the weights of another: nothing is copied, nothing is rounded.

Inputs (B batch, S new tokens, M positions that the cache has room for): `input_ids` int64 [B, S],
`seqlens_k` int32 [B] (positions in use after this step, minus 1), `total_sequence_length` int32 []
(the most of any row), `last_position` int64 [B, 1] (which of the S gives the logits),
`past.<i>.key|value` float32 [B, KV, M, D]. Outputs: `logits` float32 [B, rows] and
`present.<i>.key|value`, to be bound to the very buffers of the past: they are written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.graph.dataflow import Weight, tensor_bytes, used_initializers
from phoonnx_llasa.graph.llama import LlamaGraph

#: The newest opset whose operators are used; higher ones would only shut older runtimes out.
_OPSET: Final = 17
_IR_VERSION: Final = 8
_CONTRIB: Final = "com.microsoft"


@dataclass(frozen=True, slots=True)
class CompactGraph:
    """A graph in memory and what is needed to load it."""

    model: bytes
    """Serialized; big weights are references into files of ``data_folder``."""
    data_folder: Path
    row_offset: int
    """Token id of the first entry of a row of logits."""
    num_rows: int
    notes: tuple[str, ...]
    """What could not be done by reference, in words; empty if everything could."""


def compact_graph(graph: LlamaGraph, *, rows: tuple[int, int] | None = None) -> CompactGraph:
    """Author a LLaMA anew over its own weights.

    Args:
        graph: what was read.
        rows: first and last token id, both included, that logits are wanted for; None for all.

    Raises:
        ParameterError: ``rows`` is no range of the vocabulary.
    """
    vocab = graph.head.shape[1]
    first, last = (0, vocab - 1) if rows is None else rows
    if not 0 <= first <= last < vocab:
        raise ParameterError("rows", rows, f"a first and a last id from 0 to {vocab - 1}")
    return _Author(graph, first, last + 1).author()


class _Author:
    def __init__(self, graph: LlamaGraph, first: int, stop: int) -> None:
        self._graph = graph
        self._flow = graph.flow
        self._first, self._stop = first, stop
        self._nodes: list[onnx.NodeProto] = []
        self._stored: dict[str, TensorProto] = {}
        self._names: dict[str, str] = {}  # tensors of the source graph -> their names here
        self._takes_nodes = False
        self._notes: list[str] = []

    def author(self) -> CompactGraph:
        graph = self._graph
        for storage in graph.storage:
            self._notes.append(
                f"weights are stored as {storage}; they are made float32 when the graph is loaded"
            )
        self._constant("cos", graph.rope_cos)
        self._constant("sin", graph.rope_sin)
        embedding = self._weight("embedding", graph.embedding)
        self._add("Gather", [embedding, "input_ids"], ["stream.0"], axis=0)
        self._add(
            "SimplifiedLayerNormalization",
            ["stream.0", self._gain("layer.0.input_norm", graph.layers[0].input_norm)],
            ["layer.0.normed"],
            axis=-1,
            stash_type=1,
            epsilon=graph.norm_epsilon,
        )
        for index in range(len(graph.layers)):
            self._layer(index)
        self._head()
        # Nodes taken over to make weights keep the versions that they were written for.
        opsets = {entry.domain: entry.version for entry in self._flow.model.opset_import}
        if not self._takes_nodes:
            opsets = {"": _OPSET}
        model = helper.make_model(
            helper.make_graph(
                self._nodes,
                "llama",
                self._inputs(),
                self._outputs(),
                list(self._stored.values()),
            ),
            opset_imports=[
                helper.make_opsetid(domain, version)
                for domain, version in (opsets | {_CONTRIB: 1}).items()
            ],
            ir_version=self._flow.model.ir_version if self._takes_nodes else _IR_VERSION,
            producer_name="phoonnx_llasa",
        )
        helper.set_model_props(
            model,
            {"row_offset": str(self._first), "context_length": str(len(graph.rope_cos))},
        )
        return CompactGraph(
            model.SerializeToString(),
            self._flow.data_folder,
            self._first,
            self._stop - self._first,
            tuple(self._notes),
        )

    def _layer(self, index: int) -> None:
        graph = self._graph
        layer = graph.layers[index]
        name = f"layer.{index}"
        parts = {"q": layer.q, "k": layer.k, "v": layer.v}
        for part, weight in parts.items():
            self._linear(f"{name}.{part}", f"{name}.normed", weight)
        past = [f"past.{index}.key", f"past.{index}.value"]
        present = [f"present.{index}.key", f"present.{index}.value"]
        lengths = ["seqlens_k", "total_sequence_length"]
        self._add(
            "GroupQueryAttention",
            [*(f"{name}.{part}" for part in parts), *past, *lengths, "cos", "sin"],
            [f"{name}.attended", *present],
            domain=_CONTRIB,
            num_heads=graph.num_heads,
            kv_num_heads=graph.num_kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=graph.head_dim**-0.5,
        )
        stream, attended = f"stream.{index}", f"{name}.attended"
        final = index == len(graph.layers) - 1
        if final:  # from here on only one position of each row matters
            for tensor in (stream, attended):
                self._add("GatherND", [tensor, "last_position"], [f"{tensor}.last"], batch_dims=1)
            stream, attended = f"{stream}.last", f"{attended}.last"
        self._linear(f"{name}.o", attended, layer.o)
        middle = f"{name}.middle"
        self._add_and_norm(f"{name}.post_norm", [stream, f"{name}.o"], layer.post_norm, middle)
        for part, weight in (("gate", layer.gate), ("up", layer.up)):
            self._linear(f"{name}.{part}", f"{name}.post_norm.normed", weight)
        # with an alpha of 1 this is SiLU
        self._add("QuickGelu", [f"{name}.gate"], [f"{name}.gated"], domain=_CONTRIB, alpha=1.0)
        self._add("Mul", [f"{name}.gated", f"{name}.up"], [f"{name}.inner"])
        self._linear(f"{name}.down", f"{name}.inner", layer.down)
        sums = [middle, f"{name}.down"]
        if final:
            self._add_and_norm("final_norm", sums, graph.final_norm, "")
        else:
            following = f"layer.{index + 1}"
            gain = graph.layers[index + 1].input_norm
            self._add_and_norm(
                f"{following}.input_norm",
                sums,
                gain,
                f"stream.{index + 1}",
                normed=f"{following}.normed",
            )

    def _add_and_norm(
        self, name: str, sums: Sequence[str], gain: Weight, total: str, *, normed: str = ""
    ) -> None:
        outputs = [normed or f"{name}.normed"]
        if total:
            outputs += ["", "", total]
        self._add(
            "SkipSimplifiedLayerNormalization",
            [*sums, self._gain(name, gain)],
            outputs,
            domain=_CONTRIB,
            epsilon=self._graph.norm_epsilon,
        )

    def _gain(self, name: str, weight: Weight) -> str:
        """A norm's gain, as a vector."""
        gain = self._weight(f"{name}.weight", weight)
        if len(weight.shape) == 1:
            return gain
        self._constant("vector", np.array([-1], np.int64))
        self._add("Reshape", [gain, "vector"], [f"{name}.vector"])
        return f"{name}.vector"

    def _linear(self, output: str, source: str, weight: Weight) -> None:
        name = self._weight(f"{output}.weight", weight)
        self._multiply(output, source, name, transposed=weight.transposed)

    def _multiply(self, output: str, source: str, matrix: str, *, transposed: bool) -> None:
        if transposed:
            self._add("FusedMatMul", [source, matrix], [output], domain=_CONTRIB, transB=1)
        else:
            self._add("MatMul", [source, matrix], [output])

    def _head(self) -> None:
        """Logits of the wanted rows of the vocabulary."""
        head, source = self._graph.head, "final_norm.normed"
        axis = 0 if head.transposed else 1  # of the stored matrix, over the vocabulary
        stored = self._flow.initializers.get(head.name)
        if self._stop - self._first == head.shape[1]:
            self._linear("logits", source, head)
        elif stored is None:  # computed when the graph is loaded, and its part as well
            self._cut(self._weight("whole_head", head), axis, "head")
            self._multiply("logits", source, "head", transposed=head.transposed)
        elif head.transposed or not external_data_helper.uses_external_data(stored):
            self._stored["head"] = self._part(stored, axis)
            self._multiply("logits", source, "head", transposed=head.transposed)
        else:
            self._notes.append(
                "the head is stored as [hidden, vocabulary], whose wanted part is no run of bytes; "
                "every step reads the whole of it"
            )
            self._linear("all_logits", source, head)
            self._cut("all_logits", 1, "logits")

    def _cut(self, name: str, axis: int, output: str) -> None:
        """The wanted part of a tensor, at run time or when it is loaded."""
        numbers = {"first_row": self._first, "stop_row": self._stop, "row_axis": axis}
        for constant, value in numbers.items():
            self._constant(constant, np.array([value], np.int64))
        self._add("Slice", [name, *numbers], [output])

    def _part(self, tensor: TensorProto, axis: int) -> TensorProto:
        """The wanted rows or columns of a stored matrix; rows of an external one by reference."""
        if not external_data_helper.uses_external_data(tensor):
            wanted = np.arange(self._first, self._stop)
            return numpy_helper.from_array(numpy_helper.to_array(tensor).take(wanted, axis), "head")
        row = tensor_bytes(tensor) // tensor.dims[0]
        info = external_data_helper.ExternalDataInfo(tensor)
        count = self._stop - self._first
        part = TensorProto(name="head", dims=[count, tensor.dims[1]], data_type=tensor.data_type)
        part.data_location = TensorProto.EXTERNAL
        entries = {
            "location": info.location,
            "offset": str((info.offset or 0) + self._first * row),
            "length": str(count * row),
        }
        for key, value in entries.items():
            part.external_data.add(key=key, value=value)
        return part

    def _weight(self, name: str, weight: Weight) -> str:
        """Take a weight over, by reference where it is stored so; gives its name here."""
        if weight.name in self._names:
            return self._names[weight.name]
        nodes = self._flow.region([weight.name], cuts=()).nodes
        for source, tensor in used_initializers(nodes, self._flow.initializers).items():
            self._store(f"{name}.{len(self._names)}", source, tensor)
        if not nodes:
            self._store(name, weight.name, self._flow.initializers[weight.name])
        for node in nodes:
            self._takes_nodes = True
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:] = [self._names[source] if source else "" for source in node.input]
            for position, output in enumerate(node.output):
                if output:
                    self._names[output] = f"{name}.{len(self._names)}"
                    copy.output[position] = self._names[output]
            self._nodes.append(copy)
        return self._names[weight.name]

    def _store(self, name: str, source: str, tensor: TensorProto) -> None:
        if source in self._names:
            return
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.name = name
        self._stored[name] = copy
        self._names[source] = name

    def _constant(self, name: str, values: NDArray[np.generic]) -> None:
        self._stored[name] = numpy_helper.from_array(values, name)

    def _add(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        **options: Any,
    ) -> None:
        self._nodes.append(
            helper.make_node(op_type, inputs, outputs, name=outputs[0], domain=domain, **options)
        )

    def _cache(self, side: str) -> list[onnx.ValueInfoProto]:
        graph = self._graph
        shape: list[str | int | None] = ["batch", graph.num_kv_heads, "capacity", graph.head_dim]
        return [
            helper.make_tensor_value_info(f"{side}.{index}.{part}", TensorProto.FLOAT, shape)
            for index in range(len(graph.layers))
            for part in ("key", "value")
        ]

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        make = helper.make_tensor_value_info
        return [
            make("input_ids", TensorProto.INT64, ["batch", "new"]),
            make("seqlens_k", TensorProto.INT32, ["batch"]),
            make("total_sequence_length", TensorProto.INT32, []),
            make("last_position", TensorProto.INT64, ["batch", 1]),
            *self._cache("past"),
        ]

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        shape: list[str | int | None] = ["batch", self._stop - self._first]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
        return [logits, *self._cache("present")]
