"""llama.cpp, through llama-cpp-python, on random weights of a bundle's own shape.

How fast it is does not hang on the numbers in the weights. Its head always covers the whole
vocabulary. Sampling is this package's, on llama.cpp's logits.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines import Step, Subject
from benchmarks.machine import num_threads
from phoonnx_llasa.graph.llama import LlamaGraph
from phoonnx_llasa.sampling import END, Sampler, SamplingParams

KINDS: Final = {"llama_f16": "F16", "llama_q8_0": "Q8_0"}
#: Numbers that a matrix is filled with, over and over.
_POOL: Final = 1 << 20
#: ggml's level of log lines about what went wrong.
_ERROR: Final = 4
_BLOCK: Final = 32  # numbers of a Q8_0 block: a float16 scale, then an int8 each


def open_llama_cpp(name: str, subject: Subject) -> LlamaCppEngine:
    """Load a GGUF file of the bundle's shape; it is written first if it is not there."""
    path = subject.work / f"{name}.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(path, subject.graph(), kind=KINDS[name], context_length=subject.context_length)
    return LlamaCppEngine(name, subject, path)


def write_gguf(path: Path, graph: LlamaGraph, *, kind: str, context_length: int) -> None:
    """Write random weights of a LLaMA's shape, the head tied to the embedding.

    Args:
        path: the file.
        graph: where the shape is taken from.
        kind: F16 or Q8_0, of all matrices; norms are F32.
        context_length: most positions.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path.with_suffix(".part"), "llama")
    writer.add_context_length(context_length)
    writer.add_embedding_length(graph.hidden_size)
    writer.add_block_count(len(graph.layers))
    writer.add_feed_forward_length(graph.layers[0].gate.shape[1])
    writer.add_head_count(graph.num_heads)
    writer.add_head_count_kv(graph.num_kv_heads)
    writer.add_key_length(graph.head_dim)
    writer.add_value_length(graph.head_dim)
    writer.add_rope_dimension_count(graph.head_dim)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(graph.norm_epsilon)
    writer.add_vocab_size(graph.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    shapes = dict(_shapes(graph))
    random = np.random.default_rng(0)
    f16 = (random.standard_normal(_POOL, np.float32) * 0.02).astype(np.float16)
    blocks = random.integers(0, 256, (_POOL // _BLOCK, 2 + _BLOCK), np.uint8)
    blocks[:, :2] = np.array([2e-4], np.float16).view(np.uint8)  # the scale
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
        elif kind == "F16":
            writer.add_tensor_info(name, shape, np.dtype(np.float16), 2 * shape[0] * shape[1])
        else:
            row = shape[1] // _BLOCK * blocks.shape[1]
            writer.add_tensor_info(
                name,
                (shape[0], row),
                np.dtype(np.uint8),
                shape[0] * row,
                raw_dtype=GGMLQuantizationType.Q8_0,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape in shapes.values():
        if len(shape) == 1:
            writer.write_tensor_data(np.ones(shape, np.float32))
        elif kind == "F16":
            writer.write_tensor_data(np.resize(f16, shape))
        else:
            count = shape[0] * shape[1] // _BLOCK
            writer.write_tensor_data(np.resize(blocks, (count, blocks.shape[1])))
    writer.close()
    path.with_suffix(".part").replace(path)


def _shapes(graph: LlamaGraph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """llama.cpp's names and [out, in] of every weight."""
    yield "token_embd.weight", graph.embedding.shape
    for index, layer in enumerate(graph.layers):
        matrices = {
            "attn_q": layer.q,
            "attn_k": layer.k,
            "attn_v": layer.v,
            "attn_output": layer.o,
            "ffn_gate": layer.gate,
            "ffn_up": layer.up,
            "ffn_down": layer.down,
        }
        for name, matrix in matrices.items():
            yield f"blk.{index}.{name}.weight", matrix.shape[::-1]
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{index}.{name}.weight", (graph.hidden_size,)
    yield "output_norm.weight", (graph.hidden_size,)


class LlamaCppEngine:
    """One model and one context; see Engine."""

    def __init__(self, name: str, subject: Subject, path: Path) -> None:
        """Load a GGUF file, mapped, with as many threads as there are processors.

        Raises:
            RuntimeError: llama.cpp does not take it; its own messages are on stderr.
        """
        import llama_cpp

        self.name = name
        self._library = llama_cpp
        self._subject = subject
        self._log = _only_errors(llama_cpp)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = subject.context_length
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = num_threads()
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context over {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._num_rows: int = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._kept: Any = None

    def __del__(self) -> None:
        """Give the memory back."""
        if getattr(self, "_context", None):
            self._library.llama_free(self._context)
        if getattr(self, "_model", None):
            self._library.llama_model_free(self._model)

    def prefill(self, ids: Sequence[int]) -> float:
        """See Engine."""
        self._restore(0)
        started = time.perf_counter()
        self._feed(ids)
        return time.perf_counter() - started

    def fill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """See Engine."""
        self._restore(0)
        row = self._feed(ids)
        size = self._library.llama_state_seq_get_size(self._context, 0)
        self._kept = (ctypes.c_uint8 * size)()
        self._library.llama_state_seq_get_data(self._context, self._kept, size, 0)
        start = self._subject.first_code_id
        return row[start : start + self._subject.num_codes].copy()

    def steps(self, past: int, count: int) -> list[Step]:
        """See Engine."""
        self._restore(past)
        sampler = Sampler(SamplingParams(), self._subject.layout(), past)
        token = self._subject.first_code_id
        found = []
        for _ in range(count):
            started = time.perf_counter()
            row = self._feed([token])
            computed = time.perf_counter()
            code = sampler.sample(row, allow_end=True)
            found.append(Step(time.perf_counter() - started, computed - started))
            if code == END:
                break
            token = self._subject.first_code_id + code
        return found

    def _restore(self, length: int) -> None:
        """The first tokens of what was filled in last."""
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_clear(memory, True)
        if length:
            self._library.llama_state_seq_set_data(self._context, self._kept, len(self._kept), 0)
            self._library.llama_memory_seq_rm(memory, 0, length, -1)

    def _feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; the logits after the last, [num_rows], are llama.cpp's own buffer."""
        for first in range(0, len(ids), 512):
            chunk = ids[first : first + 512]
            tokens = (self._library.llama_token * len(chunk))(*chunk)
            batch = self._library.llama_batch_get_one(tokens, len(chunk))
            if self._library.llama_decode(self._context, batch):
                raise RuntimeError("llama.cpp fails to decode")
        pointer = self._library.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, (self._num_rows,))


def _only_errors(llama_cpp: Any) -> Any:
    """Quiet the loader; gives what has to be kept as long as the library is used."""

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes, _: Any) -> None:
        if level == _ERROR:
            sys.stderr.write(text.decode(errors="replace"))

    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    return log
