"""Prompt ids -> a stream of codes: the ONNX session, its KV cache and the loop over steps."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from phoonnx_llasa.compact_decoder import CompactModel
from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.sampling import END, Sampler

LOG = logging.getLogger(__name__)

#: Codes of the longest tail with few distinct codes that is still streamed out at once: half a
#: second, longer than the repeats seen inside speech.
HOLD_AFTER: Final = 25
#: Length of such a tail that counts as a loop: two seconds.
LOOP_LENGTH: Final = 100
#: What "few" means; a codec's silence and a stuck model use one to three codes.
LOOP_DISTINCT: Final = 3
#: How often one piece is resampled before it is ended.
MAX_RESAMPLES: Final = 3
#: The silence check looks at this many codes, every half of it.
SILENCE_WINDOW: Final = 100

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")


class Decoder(Protocol):
    """The model with the KV cache of one call."""

    length: int
    """Tokens in the cache."""

    @property
    def row_offset(self) -> int:
        """Token id of the first entry of a row of logits."""
        ...

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; gives the logits after the last one, float32 [rows], until the next."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        ...


class Model(Protocol):
    """A loaded language model; thread safe, holds no state of a call."""

    session: onnxruntime.InferenceSession
    row_offset: int
    """Token id of the first entry of a row of logits."""
    num_rows: int
    """Entries of a row of logits."""

    def decoder(self) -> Decoder:
        """An empty cache for one call."""
        ...


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How the graph of a language model is loaded."""

    compact: bool = True
    """Re-author the graph over the same weights: about 1.4 times as fast, the same logits."""
    proof: Literal["auto", "force", "off"] = "auto"
    """Hold the compact graph against the published one: once per bundle, at every load, never."""
    proofs: Path | None = None
    """Folder where proofs are kept; None keeps none."""
    prepack: bool = False
    """Copy the weights into onnxruntime's own layout: pays where batches are decoded."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> LoadSettings:
        """The defaults, changed by PHOONNX_LLASA_GRAPH, PHOONNX_LLASA_PROOF, PHOONNX_LLASA_PREPACK.

        Raises:
            ParameterError: a variable has a value that means nothing.
        """

        def choice(name: str, *allowed: str) -> str:
            value = environment.get(name, "").strip().lower() or allowed[0]
            if value not in allowed:
                raise ParameterError(name, environment[name], " or ".join(allowed))
            return value

        return cls(
            compact=choice("PHOONNX_LLASA_GRAPH", "compact", "published") == "compact",
            proof=cast(
                "Literal['auto', 'force', 'off']",
                choice("PHOONNX_LLASA_PROOF", "auto", "force", "off"),
            ),
            proofs=_proofs_folder(environment),
            prepack=choice("PHOONNX_LLASA_PREPACK", "0", "1") == "1",
        )


def _proofs_folder(environment: Mapping[str, str]) -> Path | None:
    try:
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return cache / "phoonnx_llasa" / "proofs"


class LanguageModel:
    """The published graph, a LLaMA with KV cache, as it is.

    Attributes:
        num_layers, num_kv_heads, head_dim: geometry of the cache, off the graph's inputs.
        num_rows: length of a row of logits, the vocabulary's.
    """

    row_offset = 0

    def __init__(
        self, session: onnxruntime.InferenceSession, *, path: Path | str = "model.onnx"
    ) -> None:
        """Read the geometry off the session's signature.

        Raises:
            GraphError: inputs or outputs are not those of the contract.
        """
        self.session = session
        shapes = {spec.name: spec.shape for spec in session.get_inputs()}
        outputs = {spec.name: spec.shape for spec in session.get_outputs()}
        layers = {int(m[1]) for name in shapes if (m := _PAST.fullmatch(name))}
        self.num_layers = len(layers)
        self.past_names = [
            f"past_key_values.{i}.{part}" for i in range(self.num_layers) for part in _PARTS
        ]
        self.present_names = [
            f"present.{i}.{part}" for i in range(self.num_layers) for part in _PARTS
        ]
        needed = {"input_ids", "attention_mask", "position_ids", *self.past_names}
        produced = {"logits", *self.present_names}
        if not layers or set(shapes) != needed or not produced <= set(outputs):
            odd = sorted((needed ^ set(shapes)) | (produced - set(outputs)))
            raise GraphError(
                path,
                "is not a KV-cached language model graph; unexpected or missing inputs and "
                f"outputs: {', '.join(odd[:6]) or 'past_key_values.*'}",
            )
        shape = shapes[self.past_names[0]]
        vocab_size = outputs["logits"][-1]
        if len(shape) != 4 or not all(isinstance(n, int) for n in (shape[1], shape[3], vocab_size)):
            raise GraphError(
                path, f"cache input has shape {shape}, expected [batch, heads, past, dim]"
            )
        self.num_kv_heads: int = shape[1]
        self.head_dim: int = shape[3]
        self.num_rows: int = vocab_size

    def decoder(self) -> Decoder:
        """An empty cache for one call."""
        return _GraphDecoder(self)


_PARTS: Final = ("key", "value")
_DEFAULTS: Final = LoadSettings()


def open_language_model(
    model: Path,
    *,
    rows: tuple[int, int],
    context_length: int,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    settings: LoadSettings = _DEFAULTS,
) -> LanguageModel | CompactModel:
    """Load a graph and the weights file beside it, as the compact graph where that is possible.

    Args:
        model: the published graph.
        rows: first and last token id that may be sampled.
        context_length: most tokens of one call.
        providers: onnxruntime execution providers, best first. Only the CPU's runs the compact
            graph, whose cache lies in main memory.
        settings: how to load.

    Raises:
        GraphError: the file does not load, or is not the contract's graph.
    """

    def published() -> LanguageModel:
        return open_published(model, providers=providers, prepack=settings.prepack)

    if not settings.compact or list(providers) != ["CPUExecutionProvider"]:
        return published()
    from phoonnx_llasa.graph.rewriting import open_proven

    try:
        return open_proven(
            model,
            lambda: published().decoder(),
            context_length=context_length,
            rows=rows,
            prepack=settings.prepack,
            proof=settings.proof,
            proofs=settings.proofs,
        )
    except GraphError as error:
        LOG.warning("running the graph as it is, which is slower: %s", error)
        return published()


def open_published(
    model: Path,
    *,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    prepack: bool = False,
) -> LanguageModel:
    """Load a graph as it is.

    Raises:
        GraphError: the file does not load, or is not the contract's graph.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not prepack:
        # The weights stay mapped from their file: no seconds and gigabytes for a second copy.
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=list(providers))
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        raise GraphError(model, f"does not load: {error}", hint="fetch the bundle again") from error
    return LanguageModel(session, path=model)


class CodeStream(Iterator[int]):
    """Codes of one piece, one decode step each, as they are asked for.

    Attributes:
        codes: all codes given out so far.
        finished: the last code has been given out.
        truncated: the cap was hit before the model ended by itself.
        stalled: the model was stuck in a loop or in silence and the piece was ended.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        *,
        sampler: Sampler,
        first_code_id: int,
        max_new: int,
        seed: Sequence[int] = (0,),
        is_silent: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        """Prepare a stream; nothing runs before the first ``next``.

        Args:
            decoder: a cache that is empty or holds the beginning of the prompt; this stream is
                its only user.
            prompt_ids: what the model is given first.
            sampler: picks a code or the end from a row of logits; not shared.
            first_code_id: token id of code 0.
            max_new: most codes to give out.
            seed: seeds derived from it are used where a loop is resampled.
            is_silent: says whether a run of codes is silence; None turns that check off.

        Raises:
            ParameterError: ``max_new`` is below 1.
        """
        if max_new < 1:
            raise ParameterError("max_new_tokens", max_new, "at least 1")
        self.codes: list[int] = []
        self.finished = False
        self.truncated = False
        self.stalled = False
        self._decoder = decoder
        self._prompt_ids = list(prompt_ids)
        self._sampler = sampler
        self._first_code_id = first_code_id
        self._max_new = max_new
        self._seed = tuple(seed)
        self._is_silent = is_silent
        self._steps = self._run()

    def __next__(self) -> int:
        try:
            code = next(self._steps)
        except StopIteration:
            self.finished = True
            raise
        self.codes.append(code)
        return code

    def close(self) -> None:
        """Stop; no further decode step will run."""
        self._steps.close()
        self.finished = True

    def _run(self) -> Generator[int, None, None]:
        path: list[int] = []  # what follows the prompt in the cache; shorter than what was given
        held: deque[int] = deque()  # sampled, not given out yet
        tail = _Tail()
        given = resamples = unchecked = probation = 0
        logits = self._decoder.feed(self._prompt_ids[self._decoder.length :])
        while given + len(held) < self._max_new:
            code = self._sampler.sample(logits, allow_end=given + len(held) > 0)
            if code == END:
                break
            path.append(code)
            held.append(code)
            length = tail.append(code)
            unchecked += 1
            probation -= 1
            stuck = 0
            if length >= LOOP_LENGTH:
                stuck = length
            elif length < HOLD_AFTER and probation <= 0:
                while held:
                    given += 1
                    yield held.popleft()
            if unchecked >= SILENCE_WINDOW // 2 and len(path) >= SILENCE_WINDOW:
                unchecked = 0
                if self._is_silent is not None and self._is_silent(path[-SILENCE_WINDOW:]):
                    stuck = max(stuck, SILENCE_WINDOW)
            if stuck:
                held.clear()
                resamples += 1
                if resamples > MAX_RESAMPLES or self._sampler.params.temperature == 0:
                    self.stalled = True
                    LOG.warning(
                        "the model was stuck in a loop or in silence; the piece ends at %d codes",
                        given,
                    )
                    return
                LOG.info("stuck after %d codes; sampling again from a derived seed", given)
                self._rewind(path, stuck)
                self._sampler.reseed((*self._seed, resamples))
                tail = _Tail()
                unchecked = 0
                probation = LOOP_LENGTH  # heard only once it is known to be speech again
                last = path[-1] + self._first_code_id if path else self._prompt_ids[-1]
                logits = self._decoder.feed([last])
                continue
            if given + len(held) < self._max_new:
                logits = self._decoder.feed([code + self._first_code_id])
        else:
            self.truncated = True
            LOG.warning("speech was cut off at %d codes without an end", self._max_new)
        yield from held

    def _rewind(self, path: list[int], count: int) -> None:
        """Take the last ``count`` codes back, and the token before them, to be fed again."""
        del path[len(path) - count :]
        self._sampler.forget(count)
        self._decoder.truncate(len(self._prompt_ids) + len(path) - 1)


class _Tail:
    """Length of the longest tail of codes with at most LOOP_DISTINCT distinct ones."""

    def __init__(self) -> None:
        self._codes: deque[int] = deque()
        self._counts: dict[int, int] = {}

    def append(self, code: int) -> int:
        self._codes.append(code)
        self._counts[code] = self._counts.get(code, 0) + 1
        while len(self._counts) > LOOP_DISTINCT:
            first = self._codes.popleft()
            self._counts[first] -= 1
            if not self._counts[first]:
                del self._counts[first]
        return len(self._codes)


class _GraphDecoder:
    """The published graph: the cache stays in onnxruntime's own tensors from step to step."""

    row_offset = 0

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.length = 0
        empty = np.zeros((1, model.num_kv_heads, 0, model.head_dim), np.float32)
        value = onnxruntime.OrtValue.ortvalue_from_numpy(empty)
        self._cache = [value] * len(model.past_names)
        self._names = ["logits", *model.present_names]

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        if not ids:
            raise ParameterError("ids", list(ids), "at least one token")
        total = self.length + len(ids)
        wrap = onnxruntime.OrtValue.ortvalue_from_numpy
        inputs = dict(zip(self._model.past_names, self._cache, strict=True))
        inputs["input_ids"] = wrap(np.asarray(ids, np.int64)[None, :])
        inputs["attention_mask"] = wrap(np.ones((1, total), np.int64))
        inputs["position_ids"] = wrap(np.arange(self.length, total, dtype=np.int64)[None, :])
        try:
            logits, *self._cache = self._model.session.run_with_ort_values(self._names, inputs)
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise GraphError("model.onnx", f"fails at position {self.length}: {error}") from error
        self.length = total
        row: NDArray[np.float32] = logits.numpy().reshape(-1)
        return row

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ParameterError("length", length, f"0 to {self.length}")
        self._cache = [
            onnxruntime.OrtValue.ortvalue_from_numpy(
                np.ascontiguousarray(value.numpy()[:, :, :length])
            )
            for value in self._cache
        ]
        self.length = length
