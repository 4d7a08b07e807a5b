"""Read a LLaMA off a graph by its structure, whoever exported it.

The anchors are the contract's inputs and outputs; everything between is found by what reads what.
Every linear layer is characterized by the linear layers that its input was made from: q, k and v
read the residual stream (all o and down projections so far), o reads q, k and v, gate and up read
the stream again, down reads gate and up. What lies between linear layers is not matched node by
node: it is run on small random numbers and held against what a LLaMA computes there (probe.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from phoonnx_llasa.graph.dataflow import (
    Dataflow,
    GraphMismatchError,
    Kind,
    Weight,
    attributes,
    load_dataflow,
)

#: Operators that multiply by quantized weights; named when they are why nothing is found.
_QUANTIZED = {"MatMulNBits", "MatMulInteger", "DynamicQuantizeMatMul", "QLinearMatMul"}


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer without bias."""

    weight: Weight
    source: str
    """Tensor that it reads, before any reshape."""
    output: str
    rank: int
    """Dimensions of its output, 2 or 3."""
    bit: int
    """A number of one bit that stands for it in ``behind``."""
    behind: int
    """The linear layers that its input was made from, going back to the nearest on every way."""


@dataclass(frozen=True, slots=True)
class Block:
    """Tensors and linear layers of one layer."""

    index: int
    stream: str
    """Residual stream at the start [B, S, hidden]."""
    middle: str
    """Residual stream after attention."""
    end: str
    """Residual stream after the MLP."""
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    gate: Linear
    up: Linear
    down: Linear
    input_norm: Weight
    post_norm: Weight

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All seven, in the order of use."""
        return (self.q, self.k, self.v, self.o, self.gate, self.up, self.down)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Where everything is, not yet known to compute what a LLaMA does."""

    blocks: list[Block]
    embedding: Weight
    final_norm: Weight
    head: Linear
    num_kv_heads: int
    head_dim: int

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.embedding.shape[1]

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.blocks[0].q.weight.shape[1] // self.head_dim


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The weights of one layer, named as in transformers."""

    input_norm: Weight
    q: Weight
    k: Weight
    v: Weight
    o: Weight
    post_norm: Weight
    gate: Weight
    up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class LlamaGraph:
    """A LLaMA, read off a graph."""

    flow: Dataflow
    layers: tuple[LlamaLayer, ...]
    embedding: Weight
    """[vocab, hidden]"""
    final_norm: Weight
    head: Weight
    """[hidden, vocab]"""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_cos: NDArray[np.float32]
    """[positions, head_dim / 2], as the graph itself computes them."""
    rope_sin: NDArray[np.float32]

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.embedding.shape[1]

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.embedding.shape[0]

    @property
    def tied(self) -> bool:
        """Embedding and head are one stored matrix."""
        return self.head.name == self.embedding.name

    @property
    def storage(self) -> tuple[str, ...]:
        """The ways other than plain float32 in which matrices are stored."""
        matrices = [self.embedding, self.head]
        for layer in self.layers:
            matrices += [layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down]
        return tuple(dict.fromkeys(m.storage for m in matrices if m.storage))


def read_llama(path: Path, *, max_positions: int) -> LlamaGraph:
    """Read a graph of the contract.

    Args:
        path: model.onnx; its big weights are not read.
        max_positions: length of the rotary tables, the model's context.

    Raises:
        GraphError: the file is no graph.
        GraphMismatchError: it is not a LLaMA's; says where it differs.
    """
    from phoonnx_llasa.graph.probe import probe

    flow = load_dataflow(path)
    skeleton = find_skeleton(flow)
    findings = probe(flow, skeleton, max_positions=max_positions)
    layers = []
    for block, swapped in zip(skeleton.blocks, findings.swapped, strict=True):
        gate, up = (block.up, block.gate) if swapped else (block.gate, block.up)
        layers.append(
            LlamaLayer(
                block.input_norm,
                block.q.weight,
                block.k.weight,
                block.v.weight,
                block.o.weight,
                block.post_norm,
                gate.weight,
                up.weight,
                block.down.weight,
            )
        )
    return LlamaGraph(
        flow,
        tuple(layers),
        skeleton.embedding,
        skeleton.final_norm,
        skeleton.head.weight,
        skeleton.num_heads,
        skeleton.num_kv_heads,
        skeleton.head_dim,
        findings.epsilon,
        findings.cos,
        findings.sin,
    )


def find_skeleton(flow: Dataflow) -> Skeleton:
    """Find linear layers, norms and the residual stream.

    Raises:
        GraphMismatchError: something is missing or there is something else.
    """
    return _Finder(flow).find()


class _Finder:
    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._behind: dict[str, int] = {}
        self._linears: list[Linear] = []

    def find(self) -> Skeleton:
        num_layers, num_kv_heads, head_dim = self._cache_geometry()
        self._find_linears()
        embedding, stream = self._embedding()
        hidden = embedding.shape[1]
        blocks: list[Block] = []
        seen = 0
        for index in range(num_layers):
            block = self._block(index, stream, seen, num_kv_heads * head_dim, hidden)
            if block.q.weight.shape[1] % (num_kv_heads * head_dim):
                raise self._mismatch(
                    f"layer {index}, q projection",
                    f"gives {block.q.weight.shape[1]} numbers, no multiple of "
                    f"{num_kv_heads} key heads of {head_dim}",
                )
            blocks.append(block)
            seen |= block.o.bit | block.down.bit
            stream = block.end
        head = self._head(seen, embedding)
        return Skeleton(
            blocks,
            embedding,
            self._norm("final norm", head.source, stream, hidden),
            head,
            num_kv_heads,
            head_dim,
        )

    def _mismatch(self, place: str, problem: str) -> GraphMismatchError:
        return GraphMismatchError(self._flow.path, place, problem)

    def _find_linears(self) -> None:
        """Number the linear layers, and tell for every tensor which of them it was made from."""
        flow, behind = self._flow, self._behind
        for node in flow.nodes:
            sources = flow.hidden_inputs(node)
            if node.op_type in ("MatMul", "Gemm") and sources == [node.input[0]]:
                weight = flow.weight(node.input[1])
                if len(weight.shape) == 2:
                    linear = self._linear(node, weight)
                    self._linears.append(linear)
                    behind[node.output[0]] = linear.bit
                    continue
            found = 0
            for name in sources:
                found |= behind.get(name, 0)
            for name in node.output:
                behind[name] = found

    def _linear(self, node: onnx.NodeProto, weight: Weight) -> Linear:
        flow = self._flow
        options = attributes(node)
        number = len(self._linears)
        if options.get("transB"):
            weight = Weight(weight.name, weight.shape[::-1], not weight.transposed, weight.storage)
        place = f"linear layer {number} of the graph, {list(weight.shape)}"
        if options.get("transA") or options.get("alpha", 1.0) != 1.0:
            raise self._mismatch(place, "is a Gemm that turns or scales its input")
        if len(node.input) > 2 and node.input[2]:
            raise self._mismatch(place, "has a bias")
        for reader in flow.readers(node.output[0]):
            others = [name for name in reader.input if name != node.output[0]]
            if reader.op_type == "Add" and flow.kind(others[0]) is Kind.CONSTANT:
                raise self._mismatch(place, "has a bias")
        source = flow.origin(node.input[0])
        # A Reshape in front flattens batch and positions into one dimension.
        flat = node.op_type == "Gemm" or self._passes_reshape(node.input[0], source)
        return Linear(
            weight,
            source,
            node.output[0],
            2 if flat else 3,
            1 << number,
            self._behind.get(node.input[0], 0),
        )

    def _passes_reshape(self, name: str, origin: str) -> bool:
        while name != origin:
            node = self._flow.producer(name)
            if node is None or node.op_type in ("Reshape", "Flatten"):
                return True
            name = node.input[0]
        return False

    def _cache_geometry(self) -> tuple[int, int, int]:
        """Layers, key heads and head size, off the inputs."""
        shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in self._flow.model.graph.input
        }
        num_layers = 0
        while f"past_key_values.{num_layers}.key" in shapes:
            num_layers += 1
        if not num_layers:
            raise self._mismatch("inputs", "there is no past_key_values.0.key")
        first = shapes["past_key_values.0.key"]
        if len(first) != 4 or not first[1] or not first[3]:
            raise self._mismatch("inputs", f"past_key_values.0.key has shape {first}")
        return num_layers, first[1], first[3]

    def _embedding(self) -> tuple[Weight, str]:
        flow = self._flow
        gathers = [
            node
            for name in flow.same_numbers("input_ids")
            for node in flow.readers(name)
            if node.op_type == "Gather" and node.input[1] == name
        ]
        if len(gathers) != 1 or flow.kind(gathers[0].input[0]) is not Kind.CONSTANT:
            raise self._mismatch("embedding", f"{len(gathers)} look-ups of input_ids, expected 1")
        weight = flow.weight(gathers[0].input[0])
        if len(weight.shape) != 2 or attributes(gathers[0]).get("axis", 0) != 0:
            raise self._mismatch("embedding", f"is looked up in a tensor {list(weight.shape)}")
        return weight, gathers[0].output[0]

    def _block(self, index: int, stream: str, seen: int, kv_width: int, hidden: int) -> Block:
        place = f"layer {index}"
        readers = [linear for linear in self._linears if linear.behind == seen]
        k = self._cached(place, index, "key", readers)
        v = self._cached(place, index, "value", readers)
        if len(readers) != 3 or k is v:
            raise self._mismatch(
                place,
                f"{len(readers)} linear layers read the residual stream before attention, "
                "expected q, k and v",
            )
        (q,) = (linear for linear in readers if linear not in (k, v))
        self._require_one_source(place, "q, k and v", readers)
        o = self._only(f"{place}, o projection", q.bit | k.bit | v.bit)
        middle = self._residual(f"{place}, after attention", stream, o)

        readers = [linear for linear in self._linears if linear.behind == seen | o.bit]
        if len(readers) != 2:
            raise self._mismatch(
                place,
                f"{len(readers)} linear layers read the residual stream after attention, "
                "expected gate and up",
            )
        self._require_one_source(place, "gate and up", readers)
        gate, up = readers  # which is which shows when it is run
        down = self._only(f"{place}, down projection", gate.bit | up.bit)
        end = self._residual(f"{place}, after the MLP", middle, down)
        block = Block(
            index,
            stream,
            middle,
            end,
            q,
            k,
            v,
            o,
            gate,
            up,
            down,
            self._norm(f"{place}, input norm", q.source, stream, hidden),
            self._norm(f"{place}, norm before the MLP", gate.source, middle, hidden),
        )
        inner = gate.weight.shape[1]
        heads = q.weight.shape[1]
        shapes = [
            (hidden, heads),
            (hidden, kv_width),
            (hidden, kv_width),
            (heads, hidden),
            (hidden, inner),
            (hidden, inner),
            (inner, hidden),
        ]
        names = ("q", "k", "v", "o", "gate", "up", "down")
        for name, linear, shape in zip(names, block.linears, shapes, strict=True):
            if linear.weight.shape != shape:
                raise self._mismatch(
                    f"{place}, {name} projection",
                    f"is {list(linear.weight.shape)}, expected {list(shape)}",
                )
        return block

    def _cached(self, place: str, index: int, part: str, readers: list[Linear]) -> Linear:
        """The projection that a cache output is made from."""
        behind = self._behind.get(f"present.{index}.{part}", 0)
        for linear in readers:
            if linear.bit == behind:
                return linear
        quantized = {node.op_type for node in self._flow.nodes} & _QUANTIZED
        raise self._mismatch(
            f"{place}, {part} projection",
            f"present.{index}.{part} is not made by one linear layer over the residual stream"
            + (f"; the graph has {', '.join(sorted(quantized))} nodes" if quantized else ""),
        )

    def _only(self, place: str, behind: int) -> Linear:
        found = [linear for linear in self._linears if linear.behind == behind]
        if len(found) != 1:
            raise self._mismatch(place, f"{len(found)} linear layers fit, expected 1")
        return found[0]

    def _require_one_source(self, place: str, names: str, linears: list[Linear]) -> None:
        if len({linear.source for linear in linears}) != 1:
            raise self._mismatch(place, f"{names} read different tensors")

    def _residual(self, place: str, stream: str, linear: Linear) -> str:
        """The sum of the stream and a projection."""
        flow = self._flow
        added = flow.same_numbers(linear.output)
        for name in added:
            for node in flow.readers(name):
                if node.op_type == "Add":
                    others = [other for other in node.input if other not in added]
                    if len(others) == 1 and flow.origin(others[0]) == flow.origin(stream):
                        total: str = node.output[0]
                        return total
        raise self._mismatch(place, "the projection is not added to the residual stream")

    def _norm(self, place: str, normed: str, stream: str, hidden: int) -> Weight:
        """The gain of a norm between two tensors."""
        flow = self._flow
        cuts = {stream, *(linear.output for linear in self._linears)}
        region = flow.region([normed], cuts=cuts)
        if region.by_value != [stream]:
            others = [name for name in region.by_value if name != stream]
            raise self._mismatch(place, f"reads {others or 'no stream'}, expected the stream only")
        gains: dict[str, Weight] = {}
        for node in region.nodes:
            if flow.kind(node.output[0]) is Kind.HIDDEN:
                for name in node.input:
                    if name and flow.kind(name) is Kind.CONSTANT:
                        weight = flow.weight(name)
                        if int(np.prod(weight.shape)) == hidden:
                            gains[weight.name] = weight
        if len(gains) != 1:
            raise self._mismatch(place, f"has {len(gains)} vectors of {hidden}, expected one gain")
        return gains.popitem()[1]

    def _head(self, seen: int, embedding: Weight) -> Linear:
        head = self._only("head", seen)
        vocab, hidden = embedding.shape
        if self._behind.get("logits", 0) != head.bit or "logits" not in self._flow.same_numbers(
            head.output
        ):
            raise self._mismatch("head", "logits are not the output of the last linear layer")
        if head.weight.shape[0] != hidden or head.weight.shape[1] < 1:
            raise self._mismatch(
                "head", f"is {list(head.weight.shape)}, expected [{hidden}, {vocab}]"
            )
        return head
