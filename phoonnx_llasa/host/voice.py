"""The voice that the host gets: sound in blocks as they come."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from phoonnx.config import Alphabet, SynthesisConfig, VoiceConfig, get_conversion
from phoonnx.model_manager import TTSModelInfo
from phoonnx.providers import resolve_providers
from phoonnx.util import normalize_lang
from phoonnx.voice import AudioChunk, TTSVoice

from phoonnx_llasa.bundle import Bundle, BundleConfig, open_bundle
from phoonnx_llasa.errors import ParameterError, UnsupportedError
from phoonnx_llasa.host.adapter import LlasaAdapter, no_cloning, spoken_options
from phoonnx_llasa.host.catalogue import entry_bundle
from phoonnx_llasa.host.shared import SYNTHESIZERS
from phoonnx_llasa.loudness import apply_gain, normalize_peak, preset_gain
from phoonnx_llasa.options import Options
from phoonnx_llasa.synthesis import SpeechBlock, Synthesizer

LOG = logging.getLogger(__name__)

_Samples = NDArray[np.float32]

#: The host converts no chunk shorter than this, in seconds (`TTSVoice._maybe_convert`), but passes
#: it on at the voice's own rate, in the middle of sound at another.
_SHORTEST_CONVERTED = 0.3


@dataclass
class LlasaChunk(AudioChunk):  # type: ignore[misc]
    """A chunk of the host's that knows whether speech was cut off behind it."""

    truncated: bool = False
    """The model did not come to an end by itself within what the piece may take."""


class LlasaVoice(TTSVoice):  # type: ignore[misc]
    """A preset of a loaded bundle.

    Voices of one bundle share its synthesizer; a voice holds no state of a call, so threads may
    share a voice too.

    Attributes:
        synthesizer: the loaded bundle.
        preset: name of the preset that speaks where a call names none; None for the bundle's own
            default.
    """

    def __init__(self, synthesizer: Synthesizer, config: VoiceConfig) -> None:
        """Make a voice of a loaded bundle.

        Args:
            config: the host's; ``engine_params`` may hold ``voice`` and other defaults by the
                names of ``extra_params``.

        Raises:
            UnknownPresetError: the preset does not exist, or is broken.
            ParameterError: a default in ``engine_params`` cannot be used.
        """
        self.synthesizer = synthesizer
        super().__init__(
            session=synthesizer.language_model.session,
            config=config,
            adapter=LlasaAdapter(synthesizer),
            model_path=str(synthesizer.bundle.model),
        )
        # For the host: there is no alignment model, do not look. Its search reads all weights.
        self._alignment_session = None
        self.preset: str | None = self.options().voice
        if self.preset is not None:  # a bundle's own default is reported by the call that uses it
            synthesizer.preset(self.preset)

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        *,
        preset: str | None = None,
        providers: Sequence[Any] | None = None,
    ) -> Self:
        """Load a bundle from a local folder.

        Args:
            preset: which one speaks; None for the bundle's default, "none" for no preset.
            providers: as in the host's ``TTSVoice.load``.

        Raises:
            BundleError: a file is missing or broken.
            UnknownPresetError: the preset does not exist, or is broken.
        """
        params = {} if preset is None else {"voice": preset}
        return cls.from_bundle(open_bundle(Path(folder)), params, providers=providers)

    @classmethod
    def from_entry(cls, info: TTSModelInfo, *, providers: Sequence[Any] | None = None) -> Self:
        """Load an entry of the host's catalogue, downloading what is not there yet.

        Raises:
            DownloadError: a file is neither there nor to be had.
            BundleError: a file is broken.
            UnknownPresetError: the entry's preset does not exist, or is broken.
        """
        bundle, params = entry_bundle(info)
        lang = normalize_lang(info.phonemizer_lang or info.lang or bundle.config.lang_code)
        return cls.from_bundle(bundle, params, lang_code=lang, providers=providers)

    @classmethod
    def from_bundle(
        cls,
        bundle: Bundle,
        engine_params: Mapping[str, Any],
        *,
        lang_code: str | None = None,
        providers: Sequence[Any] | None = None,
    ) -> Self:
        """Load a bundle, or share what is loaded of it already.

        Raises:
            BundleError: a file is broken.
            UnknownPresetError: the preset does not exist, or is broken.
        """
        resolved = resolve_providers(providers)
        params = {**engine_params, "providers": resolved}
        config = _voice_config(bundle.config, params, lang_code)
        # In no variable: the host's logger inspects the stack, which leaves frames in cycles, and
        # the weights would stay with this one until the next garbage collection.
        return cls(SYNTHESIZERS.get(bundle, providers=resolved), config)

    def options(self, syn_config: SynthesisConfig | None = None) -> Options:
        """What a call means, from the bundle's, the voice's and the call's own settings.

        Raises:
            ParameterError: an extra parameter is unknown or out of range.
        """
        wanted = syn_config or SynthesisConfig()
        if not isinstance(wanted.extra_params or {}, Mapping):
            raise ParameterError(
                "extra_params", wanted.extra_params, "a mapping of names to values"
            )
        extra = dict(wanted.extra_params or {})
        if wanted.temperature is not None:
            extra["temperature"] = wanted.temperature
        if wanted.top_p is not None:
            extra["top_p"] = wanted.top_p
        return spoken_options(self.synthesizer, self.config.engine_params, extra)

    def synthesize(
        self,
        text: str,
        syn_config: SynthesisConfig | None = None,
        include_alignments: bool = False,  # noqa: ARG002  (the model has none)
    ) -> Iterator[LlasaChunk]:
        """Speak a text, block by block, as the chunks are asked for.

        With ``extra_params={"stream": False}``, and where voice conversion or super-resolution is
        asked for, a chunk is a whole piece. While streaming, ``normalize_audio`` is one gain for
        the whole call, taken from the preset's own sound, so that no block jumps in level; the
        chunks of whole pieces are brought to full range one by one, as the host does.

        Wrong arguments raise here, not at the first chunk. Closing what is returned stops the
        work within one step of the model. ``phoneme_ids`` of a chunk are its codes.

        Raises:
            ParameterError: the text or an extra parameter cannot be used.
            UnknownPresetError: the preset does not exist, or is broken.
            PromptTooLongError: preset and text do not fit into the context.
            UnsupportedError: a clip to clone, or a text that is not plain text.
        """
        wanted = syn_config or SynthesisConfig()
        self._refuse_unsupported(wanted)
        return self._sound(
            lambda options: self.synthesizer.synthesize(self._prepared(text, wanted), options),
            wanted,
        )

    def synthesize_parts(
        self, parts: Iterable[str], syn_config: SynthesisConfig | None = None
    ) -> Iterator[LlasaChunk]:
        """Speak a text that is still being written, each part as soon as it is there.

        As `synthesize`, with one speaker and one seed for all parts. A part is asked for when all
        before it are spoken; let each begin with a new paragraph.

        Raises:
            ParameterError: the parts are a single string, or an extra parameter cannot be used;
                a part that cannot be used, when its turn comes.
            UnknownPresetError: the preset does not exist, or is broken.
            PromptTooLongError: preset and text do not fit into the context.
            UnsupportedError: a clip to clone, or a text that is not plain text.
        """
        if isinstance(parts, str) or not isinstance(parts, Iterable):
            # a string's parts are its letters, and that is how it would sound
            raise ParameterError("parts", parts, "an iterable of strings, as in [text]")
        wanted = syn_config or SynthesisConfig()
        self._refuse_unsupported(wanted)
        prepared = (self._prepared(part, wanted) for part in parts)
        return self._sound(
            lambda options: self.synthesizer.synthesize_parts(prepared, options), wanted
        )

    def _sound(
        self,
        speak: Callable[[Options], Generator[SpeechBlock, None, None]],
        wanted: SynthesisConfig,
    ) -> Generator[LlasaChunk, None, None]:
        options = self.options(wanted)
        upscaler = self._load_super_resolution(wanted)
        conversion = self._load_voice_conversion(wanted)
        if upscaler is not None or conversion is not None:
            options = replace(options, stream=False)
        return self._chunks(speak(options), self._loudness(options, wanted), upscaler, conversion)

    def warmup(self) -> None:
        """Read the weights once and decode the preset, so that the first call is not the slow one.

        As in the host, what goes wrong is left for the first call to report.
        """
        try:
            decoder = self.synthesizer.language_model.decoder()
            decoder.feed([self.synthesizer.tokenizer.first_code_id])
            preset = self.synthesizer.preset(self.preset)
            if preset is not None:
                self.synthesizer.preset_sound(preset)
        except Exception as error:  # noqa: BLE001
            LOG.debug("warm-up skipped: %s", error)

    def _refuse_unsupported(self, wanted: SynthesisConfig) -> None:
        if wanted.speaker_reference is not None:
            raise no_cloning(self.synthesizer.voices)
        if wanted.alphabet not in {None, Alphabet.GRAPHEMES, Alphabet.UNICODE}:
            raise UnsupportedError(
                f"Llasa reads plain text, not {getattr(wanted.alphabet, 'value', wanted.alphabet)}"
                "; leave SynthesisConfig.alphabet out"
            )

    def _prepared(self, text: str, wanted: SynthesisConfig) -> str:
        """The host's own treatment of any text: its spellings, then diacritics where asked for."""
        if not isinstance(text, str):
            raise ParameterError("text", text, "a string")
        if self.phonetic_spellings and wanted.enable_phonetic_spellings:
            text = self.phonetic_spellings.apply(text)
        _, add_diacritics = get_conversion(
            self.phonemizer, self.config, wanted, self.config.alphabet
        )
        prepared: str = add_diacritics(text)
        return prepared

    def _loudness(
        self, options: Options, wanted: SynthesisConfig
    ) -> Callable[[_Samples], _Samples]:
        """What brings the codec's samples to the level of a chunk; made once per call."""
        volume = float(wanted.volume)
        if not math.isfinite(volume) or volume < 0:
            raise ParameterError("volume", wanted.volume, "a number from 0")
        if not wanted.normalize_audio:
            return lambda samples: samples * volume
        if not options.stream:
            return lambda samples: normalize_peak(samples) * volume
        gains: list[float] = []

        def level(samples: _Samples) -> _Samples:
            if not gains:  # not before the first block: decoding the preset takes its time
                preset = self.synthesizer.preset(options.voice)
                sound = None if preset is None else self.synthesizer.preset_sound(preset)
                gains.append(1.0 if sound is None else preset_gain(sound))
            return apply_gain(samples, gains[0] * volume)

        return level

    def _chunks(
        self,
        blocks: Generator[SpeechBlock, None, None],
        level: Callable[[_Samples], _Samples],
        upscaler: Any,
        conversion: Any,
    ) -> Generator[LlasaChunk, None, None]:
        own_rate = rate = self.synthesizer.sample_rate
        with closing(blocks):
            for block in blocks:
                samples = np.clip(level(block.samples), -1.0, 1.0).astype(np.float32)
                if block.codes:
                    if conversion is not None:
                        samples = _padded(samples, int(_SHORTEST_CONVERTED * own_rate))
                    samples, rate = self._maybe_convert(samples, conversion, own_rate)
                    samples, rate = self._maybe_upscale(samples, upscaler, rate)
                elif rate != own_rate:  # silence behind a piece, at the piece's rate
                    samples = np.zeros(round(len(samples) * rate / own_rate), np.float32)
                yield LlasaChunk(
                    sample_rate=rate,
                    sample_width=2,
                    sample_channels=1,
                    audio_float_array=samples,
                    phoneme_ids=list(block.codes),
                    truncated=block.truncated,
                )


def _voice_config(
    config: BundleConfig, engine_params: Mapping[str, Any], lang_code: str | None
) -> VoiceConfig:
    """The host's view of a bundle, from the fields that have been checked."""
    return VoiceConfig.from_dict(
        {
            "engine": "llasa",
            "lang_code": config.lang_code,
            "audio": {"sample_rate": config.sample_rate},
            "hop_length": config.hop_length,
            "phoneme_type": "unicode",
            "alphabet": "graphemes",
        },
        lang_code=lang_code,
        engine_params=dict(engine_params),
    )


def _padded(samples: _Samples, length: int) -> _Samples:
    return np.pad(samples, (0, max(0, length - len(samples))))
