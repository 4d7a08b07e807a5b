"""Run what lies between a graph's linear layers on small numbers, and hold it against a LLaMA.

This finds what structure alone does not tell (norm epsilon, rotary angles, gate or up) and proves
the rest: scales, masks, head order, activation. No big weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from phoonnx_llasa.graph.dataflow import (
    Dataflow,
    GraphMismatchError,
    used_initializers,
)
from phoonnx_llasa.graph.llama import Block, Linear, Skeleton

Array = NDArray[np.floating[Any]]

#: Cached and new positions of the trial; different from each other and from any size of a model.
_PAST: Final = 5
_NEW: Final = 3
#: Largest difference from the same thing in float64, relative to its largest number.
_TOLERANCE: Final = 1e-4
#: So small that the mean square is nothing beside any epsilon, yet its square is a float32.
_TINY: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Findings:
    """What running a graph's parts told."""

    epsilon: float
    cos: NDArray[np.float32]
    """[positions, head_dim / 2]"""
    sin: NDArray[np.float32]
    swapped: list[bool]
    """Per layer: what the skeleton calls gate is up."""


def probe(flow: Dataflow, skeleton: Skeleton, *, max_positions: int) -> Findings:
    """Run a graph's parts and compare.

    Raises:
        GraphMismatchError: a part computes something else than a LLaMA's; says which and by how
            much.
    """
    return _Probe(flow, skeleton).run(max_positions)


class _Probe:
    def __init__(self, flow: Dataflow, skeleton: Skeleton) -> None:
        self._flow = flow
        self._skeleton = skeleton
        linears = [linear for block in skeleton.blocks for linear in block.linears]
        self._linears = {linear.output: linear for linear in linears}
        self._streams = [name for b in skeleton.blocks for name in (b.stream, b.middle, b.end)]
        self._cuts = {*self._linears, *self._streams}
        for block in skeleton.blocks:
            self._require_closed(block)

    def run(self, max_positions: int) -> Findings:
        cos, sin = self._rope(max_positions)
        blocks = self._skeleton.blocks
        gains = self._gains()
        outputs = [self._skeleton.head.source]
        for block in blocks:
            outputs += [
                block.q.source,
                block.gate.source,
                block.o.source,
                block.down.source,
                f"present.{block.index}.key",
                f"present.{block.index}.value",
            ]
        session, inputs = self._session(outputs, gains)
        feeds = self._feeds(inputs)
        random = self._evaluate(session, feeds)
        small = {name: np.full_like(feeds[name], _TINY) for name in {*self._streams} & {*feeds}}
        tiny = self._evaluate(session, feeds | small)

        epsilons: set[float] = set()
        norms = [
            (f"layer {block.index}, {place}", source, stream, gain.name)
            for block in blocks
            for place, source, stream, gain in (
                ("input norm", block.q.source, block.stream, block.input_norm),
                ("norm before the MLP", block.gate.source, block.middle, block.post_norm),
            )
        ]
        last = ("final norm", self._skeleton.head.source, blocks[-1].end)
        norms.append((*last, self._skeleton.final_norm.name))
        for place, source, stream, name in norms:
            gain = random[gains[name]].reshape(-1).astype(np.float64)
            epsilon = self._epsilon(place, tiny[source], gain)
            self._check_norm(place, random[source], feeds[stream], gain, epsilon)
            epsilons.add(epsilon)
        if len(epsilons) != 1:
            raise self._mismatch("norms", f"have different epsilons {sorted(epsilons)}")

        for block in blocks:
            self._check_attention(block, feeds, random, cos, sin)
        swapped = [self._check_mlp(block, feeds, random) for block in blocks]
        return Findings(epsilons.pop(), cos, sin, swapped)

    def _mismatch(self, place: str, problem: str) -> GraphMismatchError:
        return GraphMismatchError(self._flow.path, place, problem)

    def _require_closed(self, block: Block) -> None:
        """Attention reads its own q, k, v and cache and nothing else of the model; so the MLP."""
        place, past = f"layer {block.index}", f"past_key_values.{block.index}"
        attention = {block.q.output, block.k.output, block.v.output, f"{past}.key", f"{past}.value"}
        parts = {
            "attention": (block.o.source, attention),
            "MLP": (block.down.source, {block.gate.output, block.up.output}),
        }
        for name, (output, expected) in parts.items():
            region = self._flow.region([output], cuts=self._cuts)
            found = set(region.by_value) - {"attention_mask", "position_ids"}
            if found != expected:
                odd = ", ".join(sorted(found ^ expected))
                raise self._mismatch(
                    f"{place}, {name}", f"reads more or less than it should: {odd}"
                )

    def _gains(self) -> dict[str, str]:
        """Name of each norm's gain -> name of the output that gives its numbers."""
        names = [self._skeleton.final_norm.name]
        for block in self._skeleton.blocks:
            names += [block.input_norm.name, block.post_norm.name]
        return {name: f"gain {number}" for number, name in enumerate(dict.fromkeys(names))}

    def _session(
        self, outputs: Sequence[str], gains: Mapping[str, str]
    ) -> tuple[onnxruntime.InferenceSession, list[str]]:
        """A session over the parts that make some tensors; gives it and the inputs it needs."""
        flow = self._flow
        region = flow.region([*outputs, *gains], cuts=self._cuts)
        inputs = [*region.by_value, *region.by_shape]
        nodes = region.nodes + [
            helper.make_node("Identity", [name], [output]) for name, output in gains.items()
        ]
        declared = {value.name: value for value in flow.model.graph.input}
        model = helper.make_model(
            helper.make_graph(
                nodes,
                "parts",
                [
                    declared.get(name, helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
                    for name in inputs
                ],
                [
                    onnx.ValueInfoProto(name=name)
                    for name in dict.fromkeys([*outputs, *gains.values()])
                ],
                list(used_initializers(nodes, flow.initializers).values()),
            ),
            opset_imports=flow.model.opset_import,
            ir_version=flow.model.ir_version,
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what fails is raised
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(flow.data_folder)
        )
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise self._mismatch("between linear layers", f"does not load: {error}") from error
        return session, inputs

    def _evaluate(
        self, session: onnxruntime.InferenceSession, feeds: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[np.float32]]:
        try:
            values = session.run(None, dict(feeds))
        except Exception as error:  # see above
            raise self._mismatch("between linear layers", f"does not run: {error}") from error
        return dict(zip((spec.name for spec in session.get_outputs()), values, strict=True))

    def _feeds(
        self, inputs: Sequence[str], *, past: int = _PAST, new: int = _NEW
    ) -> dict[str, NDArray[Any]]:
        """Random numbers for everything; positions and mask as in a decode step of ``new``."""
        skeleton = self._skeleton
        rng = np.random.default_rng(0)
        feeds: dict[str, NDArray[Any]] = {}
        for name in inputs:
            if name == "input_ids":
                feeds[name] = np.zeros((1, new), np.int64)
            elif name == "attention_mask":
                feeds[name] = np.ones((1, past + new), np.int64)
            elif name == "position_ids":
                feeds[name] = np.arange(past, past + new, dtype=np.int64)[None]
            else:
                if name in self._linears:
                    linear = self._linears[name]
                    shape: tuple[int, ...] = (1, new, linear.weight.shape[1])[3 - linear.rank :]
                elif name in self._streams:
                    shape = (1, new, skeleton.hidden_size)
                else:
                    shape = (1, skeleton.num_kv_heads, past, skeleton.head_dim)
                feeds[name] = rng.standard_normal(shape, np.float32)
        return feeds

    def _rope(self, max_positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The rotary tables: a key of ones and zeros, rotated, is the cosines and the sines."""
        skeleton = self._skeleton
        half = skeleton.head_dim // 2
        session, inputs = self._session(["present.0.key"], {})
        feeds = self._feeds(inputs, past=0, new=max_positions)
        key = skeleton.blocks[0].k.output
        unit = np.zeros((max_positions, skeleton.num_kv_heads, skeleton.head_dim), np.float32)
        unit[..., :half] = 1
        feeds[key] = unit.reshape(feeds[key].shape)
        rotated = self._evaluate(session, feeds)["present.0.key"]
        expected = (1, skeleton.num_kv_heads, max_positions, skeleton.head_dim)
        if rotated.shape != expected:
            raise self._mismatch(
                "layer 0, key cache", f"has shape {rotated.shape}, expected {expected}"
            )
        first = rotated[0, 0]
        return np.ascontiguousarray(first[:, :half]), np.ascontiguousarray(first[:, half:])

    def _epsilon(self, place: str, output: Array, gain: Array) -> float:
        """Epsilon, from what a norm makes of next to nothing: gain * tiny / sqrt(epsilon)."""
        last = np.abs(output.reshape(-1, len(gain))[-1].astype(np.float64))
        strong = np.abs(gain) > 0.1 * np.abs(gain).max()
        with np.errstate(divide="ignore"):
            found = (np.abs(gain[strong]) * _TINY / last[strong]) ** 2
        epsilon = float(np.median(found))
        if not 1e-14 < epsilon < 1e-2:
            raise self._mismatch(
                place, f"is no RMS norm; an epsilon of {epsilon:.3g} makes no sense"
            )
        return float(f"{epsilon:.5g}")  # it was a decimal number in somebody's configuration

    def _check_norm(
        self, place: str, output: Array, stream: Array, gain: Array, epsilon: float
    ) -> None:
        x = stream.reshape(-1, len(gain)).astype(np.float64)
        expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain
        found = output.reshape(-1, len(gain))
        # The final norm may come after the last position was taken.
        self._compare(place, "an RMS norm", found, expected[-len(found) :])

    def _check_attention(
        self,
        block: Block,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[np.float32]],
        cos: Array,
        sin: Array,
    ) -> None:
        place = f"layer {block.index}, attention"
        past = f"past_key_values.{block.index}"
        present = f"present.{block.index}"
        positions = slice(_PAST, _PAST + _NEW)
        angles = cos[positions].astype(np.float64), sin[positions].astype(np.float64)
        query = _rotate(self._heads(feeds, block.q), *angles)
        key = _rotate(self._heads(feeds, block.k), *angles)
        keys = np.concatenate([feeds[f"{past}.key"][0], key], axis=1)
        values = np.concatenate([feeds[f"{past}.value"][0], self._heads(feeds, block.v)], axis=1)
        what = "the cache with the new positions"
        self._compare(place, f"{what}' rotated keys", outputs[f"{present}.key"][0], keys)
        self._compare(place, f"{what}' values", outputs[f"{present}.value"][0], values)
        expected = _attention(query, keys, values).transpose(1, 0, 2).reshape(_NEW, -1)
        found = outputs[block.o.source].reshape(_NEW, -1)
        self._compare(place, "causal grouped-query attention", found, expected)

    def _check_mlp(
        self,
        block: Block,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[np.float32]],
    ) -> bool:
        """Whether gate and up are the other way round."""
        first = feeds[block.gate.output].reshape(_NEW, -1).astype(np.float64)
        second = feeds[block.up.output].reshape(_NEW, -1).astype(np.float64)
        found = outputs[block.down.source].reshape(_NEW, -1)
        swapped = bool(
            _difference(found, _silu(second) * first) < _difference(found, _silu(first) * second)
        )
        expected = _silu(second) * first if swapped else _silu(first) * second
        self._compare(f"layer {block.index}, MLP", "SiLU(gate) * up", found, expected)
        return swapped

    def _heads(self, feeds: Mapping[str, NDArray[Any]], linear: Linear) -> Array:
        """A projection's output as float64 [heads, positions, head_dim]."""
        flat = feeds[linear.output].reshape(_NEW, -1, self._skeleton.head_dim)
        heads: Array = flat.transpose(1, 0, 2).astype(np.float64)
        return heads

    def _compare(self, place: str, name: str, found: Array, expected: Array) -> None:
        if found.shape != expected.shape:
            raise self._mismatch(
                place, f"has shape {list(found.shape)}, {name} has {list(expected.shape)}"
            )
        difference = _difference(found, expected)
        if not difference <= _TOLERANCE:
            raise self._mismatch(place, f"differs from {name} by {difference:.2g} of the largest")


def _difference(found: Array, expected: Array) -> float:
    """Largest difference, relative to the largest number; NaN if there is any."""
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))


def _silu(x: Array) -> Array:
    result: Array = x / (1 + np.exp(-x))
    return result


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding over halves: x [heads, S, D], cos and sin [S, D / 2]."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attention(query: Array, keys: Array, values: Array) -> Array:
    """Attend with query [H, S, D] to keys and values [KV, T, D]; the last S of T are its own."""
    group = len(query) // len(keys)
    keys, values = np.repeat(keys, group, axis=0), np.repeat(values, group, axis=0)
    scores = query @ keys.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    new, total = scores.shape[1:]
    hidden = np.arange(total) > np.arange(total - new, total)[:, None]
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = weights / weights.sum(-1, keepdims=True) @ values
    return result
