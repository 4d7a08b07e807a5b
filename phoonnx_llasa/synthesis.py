"""The whole pipeline: text -> pieces -> prompts -> codes -> blocks of samples."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.bundle import Bundle
from phoonnx_llasa.codec import Block, Codec, decode_stream, decode_whole, open_codec
from phoonnx_llasa.compact_decoder import CompactModel
from phoonnx_llasa.errors import (
    ConfigError,
    GraphError,
    ParameterError,
    PresetError,
    PromptTooLongError,
)
from phoonnx_llasa.language_model import (
    CodeStream,
    Decoder,
    LoadSettings,
    Model,
    open_language_model,
)
from phoonnx_llasa.options import Options, parse_options
from phoonnx_llasa.prefixes import PrefixCache
from phoonnx_llasa.presets import (
    Preset,
    Voices,
    cut_reference,
    read_voices,
)
from phoonnx_llasa.prompt import Prompt, PromptBuilder, SpeechTokenizer
from phoonnx_llasa.sampling import Sampler, SpeechLayout
from phoonnx_llasa.text import split_text, spoken_weight
from phoonnx_llasa.user_voices import JoinedVoices

LOG = logging.getLogger(__name__)

#: Longest text of one call; beyond it something else than a text to read was given.
MAX_TEXT_CHARS: Final = 100_000

#: Codes per unit of spoken weight in slow speech: 50 codes a second, and hardly anybody says fewer
#: than 6 letters a second. The cap only has to stop a model that does not end by itself.
_SLOW_CODES_PER_WEIGHT: Final = 8.0
#: Codes that any piece may have on top: breath, a drawn-out single word.
_EXTRA_CODES: Final = 100
#: Codes per unit of spoken weight in ordinary speech (about 13 letters a second), which must fit
#: into the context, or the piece is split further.
_USUAL_CODES_PER_WEIGHT: Final = 3.8

#: Pieces are not split further than this, in characters; the cap keeps the context then.
_SHORTEST_PIECE: Final = 20

#: Sound this much below the preset's level counts as silence (RMS, factor 0.003 = -50 dB).
_SILENCE_FACTOR: Final = 0.003
#: RMS of ordinary speech in a full-scale recording, where no preset tells (-26 dBFS).
_USUAL_RMS: Final = 0.05


@dataclass(frozen=True, slots=True)
class SpeechBlock:
    """A run of sound as it comes out of the codec, no gain applied."""

    samples: NDArray[np.float32]
    """[hop_length * len(codes)], or silence between pieces."""
    codes: tuple[int, ...]
    """Empty for silence between pieces."""
    piece: int
    """Number of the piece, from 0."""
    text: str
    """The piece."""
    truncated: bool = False
    """On a piece's last block: the cap was hit before the model ended by itself."""


class Synthesizer:
    """One loaded bundle. Thread safe: what belongs to a call lives in the call.

    Attributes:
        bundle: the files.
        sample_rate: Hertz.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        tokenizer: SpeechTokenizer,
        language_model: Model,
        codec: Codec,
        voices: Voices,
    ) -> None:
        """Put loaded parts together.

        Args:
            voices: the bundle's presets; the user's own are added here.

        Raises:
            ConfigError: config.json's sampling defaults cannot be used.
            GraphError: graph and tokenizer do not belong together.
        """
        self.bundle = bundle
        self.tokenizer = tokenizer
        self.language_model = language_model
        self.codec = codec
        self.sample_rate = bundle.config.sample_rate
        self._voices = JoinedVoices(
            voices, bundle.codec, num_codes=tokenizer.num_codes, prepare=_fit_references
        )
        offset = language_model.row_offset
        first, last = speech_rows(tokenizer)
        if first < offset or last >= offset + language_model.num_rows:
            raise GraphError(
                bundle.model,
                f"has logits of ids {offset} to {offset + language_model.num_rows - 1}, "
                f"the tokenizer's speech tokens are {first} to {last}",
                hint="model and tokenizer belong to different bundles",
            )
        self._layout = SpeechLayout(
            tokenizer.first_code_id - offset, tokenizer.num_codes, tokenizer.end_id - offset
        )
        self._prefixes = (
            PrefixCache(language_model) if isinstance(language_model, CompactModel) else None
        )
        self._prompts = PromptBuilder(
            tokenizer,
            template=bundle.config.prompt,
            context_length=bundle.config.context_length,
        )
        self._preset_sounds: dict[str, tuple[Preset, NDArray[np.float32]]] = {}
        self._preset_sounds_lock = threading.Lock()
        try:
            self.options({})
        except ParameterError as error:
            raise ConfigError(
                bundle.model.parent / "config.json",
                f"inference.{error.name}",
                bundle.config.inference.get(error.name),
                error.allowed,
            ) from error

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        providers: Sequence[Any] = ("CPUExecutionProvider",),
        settings: LoadSettings | None = None,
    ) -> Synthesizer:
        """Load everything of a bundle.

        Args:
            bundle: the files.
            providers: onnxruntime execution providers, best first.
            settings: how the language model is loaded; None takes what the environment says.

        Raises:
            BundleError: a file is broken or does not fit the others; the message names it.
        """
        config = bundle.config
        tokenizer = SpeechTokenizer(bundle.tokenizer, config.num_codes)
        voices = (
            Voices()
            if bundle.voices is None
            else read_voices(bundle.voices, num_codes=tokenizer.num_codes)
        )
        codec = open_codec(
            bundle.codec,
            hop_length=config.hop_length,
            sample_rate=config.sample_rate,
            providers=providers,
        )
        model = open_language_model(
            bundle.model,
            rows=speech_rows(tokenizer),
            context_length=config.context_length,
            providers=providers,
            settings=settings or LoadSettings.from_environment(),
        )
        return cls(bundle, tokenizer=tokenizer, language_model=model, codec=codec, voices=voices)

    @property
    def voices(self) -> Voices:
        """The presets, the bundle's and the user's own, cut to what the context can hold.

        A preset that the user makes is found from then on.
        """
        return self._voices.now()

    def options(self, extra_params: Mapping[str, Any]) -> Options:
        """What a caller asked for, on top of the bundle's own defaults.

        Raises:
            ParameterError: a name is unknown or a value out of range.
        """
        return parse_options(extra_params, defaults=self.bundle.config.inference)

    def preset(self, name: str | None) -> Preset | None:
        """The preset of a name; None stands for the bundle's default, "none" for no preset.

        Raises:
            UnknownPresetError: no such preset, or it is broken.
        """
        return self.voices.get(name)

    def preset_sound(self, preset: Preset) -> NDArray[np.float32]:
        """The preset itself as sound, float32 [hop_length * codes], decoded once and kept."""
        with self._preset_sounds_lock:
            kept, sound = self._preset_sounds.get(preset.name, (None, None))
            if sound is None or kept != preset:  # the user may have made it anew
                sound = decode_whole(self.codec, preset.codes).samples
                sound.setflags(write=False)
                if self.voices.presets.get(preset.name) == preset:
                    self._preset_sounds[preset.name] = preset, sound
            return sound

    def synthesize(self, text: str, options: Options) -> Generator[SpeechBlock, None, None]:
        """Speak a text. Blocks are made as they are asked for; closing stops within one step.

        Raises:
            ParameterError: the text is no text, or too long.
            UnknownPresetError: the preset does not exist.
            PromptTooLongError: preset and text do not fit into the context.
        """
        preset = self.preset(options.voice)
        pieces = self._pieces(text, preset, options)
        return self._speak(deque(pieces), iter(()), preset, options)

    def synthesize_parts(
        self, parts: Iterable[str], options: Options
    ) -> Generator[SpeechBlock, None, None]:
        """Speak a text that is still being written, each part as soon as it is there.

        A part is asked for when all before it are spoken. Where each begins with a new paragraph,
        the sound is that of the whole text in one call: one speaker, one seed for all.

        Raises:
            ParameterError: a part is no text, or too long; raised when its turn comes.
            UnknownPresetError: the preset does not exist.
            PromptTooLongError: preset and text do not fit into the context.
        """
        return self._speak(deque(), iter(parts), self.preset(options.voice), options)

    def _speak(
        self,
        waiting: deque[str],
        parts: Iterator[str],
        preset: Preset | None,
        options: Options,
    ) -> Generator[SpeechBlock, None, None]:
        seed = secrets.randbits(63) if options.seed is None else options.seed
        pause = np.zeros(round(options.sentence_silence * self.sample_rate), np.float32)
        # Without a preset the codec has what was just said to go on from.
        context: Sequence[int] = () if preset is None else preset.codes
        number = 0
        while True:
            while not waiting:
                part = next(parts, None)
                if part is None:
                    return
                waiting.extend(self._pieces(part, preset, options))
            piece = waiting.popleft()
            if number and pause.size:
                yield SpeechBlock(pause, (), number, piece)
            codes = self._code_stream(piece, preset, options, (seed, number))
            spoken = 0
            with closing(codes):
                for block in self._decode(codes, context, options):
                    spoken += len(block.codes)
                    is_last = codes.finished and spoken == len(codes.codes)
                    yield SpeechBlock(
                        block.samples, block.codes, number, piece, codes.truncated and is_last
                    )
            number += 1
            if preset is not None:
                continue
            context = codes.codes
            if not self.bundle.config.single_speaker:
                preset = _invented(piece, codes)
                # The prompts are longer from here on.
                waiting = deque(
                    part
                    for rest in waiting
                    for part in self._fit(rest, preset, options.max_chunk_chars)
                )

    def _decode(
        self, codes: CodeStream, context: Sequence[int], options: Options
    ) -> Iterator[Block]:
        if options.stream:
            yield from decode_stream(self.codec, codes, context=context, settings=options.windows)
        elif everything := list(codes):
            yield decode_whole(self.codec, everything, context=context, settings=options.windows)

    def _code_stream(
        self, piece: str, preset: Preset | None, options: Options, seed: tuple[int, int]
    ) -> CodeStream:
        prompt = self._prompts.build(piece, preset)
        max_new = max_codes(piece, prompt, options.max_new_tokens)
        return CodeStream(
            self._decoder(prompt, max_new),
            prompt.ids,
            sampler=Sampler(options.sampling, self._layout, seed),
            first_code_id=self.tokenizer.first_code_id,
            max_new=max_new,
            seed=seed,
            is_silent=self._silence_check(preset),
        )

    def _decoder(self, prompt: Prompt, max_new: int) -> Decoder:
        if self._prefixes is None:
            return self.language_model.decoder()
        return self._prefixes.start(prompt.ids, prompt.shared, capacity=len(prompt.ids) + max_new)

    def _silence_check(self, preset: Preset | None) -> Callable[[Sequence[int]], bool]:
        levels: list[float] = []

        def is_silent(codes: Sequence[int]) -> bool:
            if not levels:  # an invented speaker's sound is kept nowhere else
                levels.append(_USUAL_RMS if preset is None else rms(self.preset_sound(preset)))
            return rms(self.codec.decode(codes)) < _SILENCE_FACTOR * levels[0]

        return is_silent

    def _pieces(self, text: str, preset: Preset | None, options: Options) -> list[str]:
        if not isinstance(text, str):
            raise ParameterError("text", text, "a string")
        if len(text) > MAX_TEXT_CHARS:
            raise ParameterError("text", text, f"up to {MAX_TEXT_CHARS} characters in one call")
        return self._fit(text, preset, options.max_chunk_chars)

    def _fit(self, text: str, preset: Preset | None, max_chars: int) -> list[str]:
        """Split a text so that what each piece usually takes fits behind its prompt.

        Raises:
            PromptTooLongError: the preset alone fills the context.
        """
        while True:
            pieces = split_text(text, max_chars)
            if max_chars <= _SHORTEST_PIECE or all(self._fits(p, preset) for p in pieces):
                for piece in pieces:
                    self._prompts.build(piece, preset)
                return pieces
            max_chars //= 2

    def _fits(self, piece: str, preset: Preset | None) -> bool:
        try:
            room = self._prompts.build(piece, preset).room
        except PromptTooLongError:
            return False
        return room >= _USUAL_CODES_PER_WEIGHT * spoken_weight(piece)


def speech_rows(tokenizer: SpeechTokenizer) -> tuple[int, int]:
    """First and last id that may be sampled."""
    last_code = tokenizer.first_code_id + tokenizer.num_codes - 1
    return min(tokenizer.first_code_id, tokenizer.end_id), max(last_code, tokenizer.end_id)


def max_codes(piece: str, prompt: Prompt, asked: int | None) -> int:
    """The cap of one piece: what slow speech of its length takes, and what the context leaves."""
    usual = _EXTRA_CODES + math.ceil(_SLOW_CODES_PER_WEIGHT * spoken_weight(piece))
    return min(prompt.room, usual if asked is None else asked)


def rms(samples: NDArray[np.float32]) -> float:
    """Root mean square of float32 [N]; 0.0 of nothing."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if samples.size else 0.0


def _invented(piece: str, codes: CodeStream) -> Preset | None:
    """The speaker whom the model made up for a piece, to go on with; None if it went wrong."""
    if not codes.codes or codes.truncated or codes.stalled:
        return None
    try:
        return cut_reference(Preset("(invented)", piece, "", tuple(codes.codes)))
    except PresetError:
        return None


def _fit_references(voices: Voices) -> Voices:
    presets: dict[str, Preset] = {}
    broken = dict(voices.broken)
    for name, preset in voices.presets.items():
        try:
            presets[name] = cut_reference(preset)
        except PresetError as error:
            LOG.warning("%s", error)
            broken[name] = error
    return replace(voices, presets=presets, broken=broken)
