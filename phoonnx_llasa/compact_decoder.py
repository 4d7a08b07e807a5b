"""Run a compact graph: a KV cache in place, and nothing copied on the way of a step.

The graph is one that `phoonnx_llasa.graph.compact` authored; this module needs onnxruntime only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from phoonnx_llasa.errors import GraphError, ParameterError

#: Positions that a cache grows by. Every growth copies the cache once: at 64 kB a position
#: (Llasa-1B) that is some milliseconds every five seconds of speech.
GROWTH: Final = 256
#: Most tokens of one run of the graph. Attention scores take heads * tokens * positions * 4 bytes
#: (134 MB here for 32 heads and 2,048 positions), the weights are read once per run.
CHUNK: Final = 512


class CompactModel:
    """A compact graph, loaded; thread safe, holds no state of a call.

    Attributes:
        num_layers, num_kv_heads, head_dim: geometry of the cache.
        row_offset: token id of the first entry of a row of logits.
        num_rows: entries of a row of logits.
        context_length: most positions of one cache.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        """Read the geometry off the session.

        Raises:
            GraphError: it is no session over a compact graph.
        """
        self.session = session
        shapes = {spec.name: spec.shape for spec in session.get_inputs()}
        properties = session.get_modelmeta().custom_metadata_map
        try:
            _, self.num_kv_heads, _, self.head_dim = shapes["past.0.key"]
            self.row_offset = int(properties["row_offset"])
            self.context_length = int(properties["context_length"])
        except KeyError as error:
            raise GraphError("model", f"is no compact graph: it lacks {error}") from error
        self.num_layers = sum(name.startswith("past.") for name in shapes) // 2
        self.num_rows: int = session.get_outputs()[0].shape[1]

    def decoder(self) -> CompactDecoder:
        """An empty cache for one call."""
        return CompactDecoder(self)


def load_compact(
    model: bytes,
    data_folder: Path,
    *,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    prepack: bool = False,
    threads: int = 0,
) -> CompactModel:
    """Load a compact graph from memory.

    Args:
        model: the serialized graph.
        data_folder: folder of the files that its weights refer to.
        providers: onnxruntime execution providers, best first.
        prepack: copy the weights into the layout that is best for several rows at once. It costs
            their size in memory and seconds at loading, and pays where batches are decoded.
        threads: threads of one step; 0 leaves it to onnxruntime.

    Raises:
        GraphError: it does not load.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # The plan of one shape is no use for the next prompt, and plans are never dropped.
    options.enable_mem_pattern = False
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(data_folder)
    )
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = onnxruntime.InferenceSession(model, options, providers=list(providers))
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        raise GraphError(data_folder, f"the compact graph does not load: {error}") from error
    return CompactModel(session)


class CompactDecoder:
    """The KV cache of one call. Not thread safe, but ``fork`` may be called from many threads.

    Attributes:
        length: tokens in the cache.
        row_offset: token id of the first entry of a row of logits.
        num_rows: entries of a row of logits.
    """

    def __init__(self, model: CompactModel, *, capacity: int = 0) -> None:
        """An empty cache.

        Args:
            model: the graph.
            capacity: positions to make room for at once.
        """
        self.length = 0
        self.row_offset = model.row_offset
        self.num_rows = model.num_rows
        self._model = model
        self._capacity = 0
        self._cache: list[NDArray[np.float32]] = []
        self._ids = np.zeros((1, CHUNK), np.int64)
        self._last_index = np.zeros(1, np.int32)  # seqlens_k
        self._total = np.zeros((), np.int32)
        self._last_position = np.zeros((1, 1), np.int64)
        self._logits = np.zeros((1, model.num_rows), np.float32)
        self._row: NDArray[np.float32] = self._logits[0]
        self._row.flags.writeable = False
        self._step_bindings: list[Any] = []
        if capacity:
            self._make_room(capacity)

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens.

        Args:
            ids: token ids, any number.

        Returns:
            The logits after the last one, float32 [num_rows], read only; entry i belongs to token
            ``row_offset + i``. The next ``feed`` overwrites them.

        Raises:
            ParameterError: there is no token, or no room for all in the model's context.
        """
        room = self._model.context_length - self.length
        if not 0 < len(ids) <= room:
            raise ParameterError("ids", len(ids), f"1 to {room} more tokens")
        needed = self.length + len(ids)
        if needed > self._capacity:
            self._make_room(-(-needed // GROWTH) * GROWTH)
        if len(ids) == 1:
            self._ids[0, 0] = ids[0]
            self._run(self._step_binding(), 1)
            return self._row
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            self._ids[0, : len(chunk)] = chunk
            self._run(self._bind(len(chunk)), len(chunk))
        return self._row

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on.

        Raises:
            ParameterError: there are not that many.
        """
        if not 0 <= length <= self.length:
            raise ParameterError("length", length, f"0 to {self.length}")
        self.length = length

    def fork(self, length: int | None = None, *, capacity: int = 0) -> CompactDecoder:
        """A decoder of its own over a copy of the first ``length`` tokens (None for all).

        Args:
            length: tokens to take over.
            capacity: positions to make room for at once; at least for ``length``.

        Raises:
            ParameterError: there are not that many.
        """
        taken = self.length if length is None else length
        if not 0 <= taken <= self.length:
            raise ParameterError("length", taken, f"0 to {self.length}")
        other = CompactDecoder(self._model, capacity=max(taken, capacity))
        if taken:
            for source, target in zip(self._cache, other._cache, strict=True):
                target[:, :, :taken] = source[:, :, :taken]
        other.length = taken
        return other

    @property
    def num_bytes(self) -> int:
        """Memory of the cache."""
        return sum(buffer.nbytes for buffer in self._cache)

    def _make_room(self, capacity: int) -> None:
        """Room for ``capacity`` positions, as far as the context goes; those in use are kept."""
        model = self._model
        capacity = min(capacity, model.context_length)
        self._capacity = 0  # until all is there: what is bound below goes away on the way
        self._step_bindings = []
        shape = (1, model.num_kv_heads, capacity, model.head_dim)
        for index in range(2 * model.num_layers):
            buffer = np.zeros(shape, np.float32)  # the pages come when they are first written
            if self.length:
                buffer[:, :, : self.length] = self._cache[index][:, :, : self.length]
            if index < len(self._cache):
                self._cache[index] = buffer  # one at a time, so that the old one goes at once
            else:
                self._cache.append(buffer)
        self._capacity = capacity

    def _step_binding(self) -> Any:
        """One of two bindings for one token, in turn.

        Some versions of onnxruntime crash when the same one is run twice in a row.
        """
        if not self._step_bindings:
            self._step_bindings = [self._bind(1), self._bind(1)]
        self._step_bindings.reverse()
        return self._step_bindings[0]

    def _bind(self, new: int) -> Any:
        """A binding for runs of ``new`` tokens, valid until the cache grows."""
        binding = self._model.session.io_binding()
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": self._ids[:, :new],
            "seqlens_k": self._last_index,
            "total_sequence_length": self._total,
            "last_position": self._last_position,
        }
        for name, value in inputs.items():
            binding.bind_input(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)
        float32, logits = np.float32, self._logits
        binding.bind_output("logits", "cpu", 0, float32, logits.shape, logits.ctypes.data)
        for index, buffer in enumerate(self._cache):
            name = f"{index // 2}.{('key', 'value')[index % 2]}"
            place = ("cpu", 0, float32, buffer.shape, buffer.ctypes.data)
            binding.bind_input(f"past.{name}", *place)
            binding.bind_output(f"present.{name}", *place)
        return binding

    def _run(self, binding: Any, new: int) -> None:
        self._last_index[0] = self.length + new - 1
        self._total[...] = self.length + new
        self._last_position[0, 0] = new - 1
        try:
            self._model.session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise GraphError("model.onnx", f"fails at position {self.length}: {error}") from error
        self.length += new
