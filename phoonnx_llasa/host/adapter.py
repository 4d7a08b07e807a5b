"""The engine the host's registry holds under "llasa": `TTSVoice.load` on a bundle, no streaming.

The host hands an adapter token ids, one list per model call. Here they are the code points of the
pieces of a text (the voice's phoneme type is "unicode"), so that a piece can go through the same
pipeline as in `LlasaVoice`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from phoonnx.engines.base import AdapterSynthesisResult, BaseOnnxAdapter

from phoonnx_llasa.bundle import CONFIG_FILE, BundleConfig, bundle_from_files, read_config
from phoonnx_llasa.codec import Codec
from phoonnx_llasa.errors import UnsupportedError
from phoonnx_llasa.language_model import LanguageModel
from phoonnx_llasa.options import Options, parse_options
from phoonnx_llasa.presets import Voices, read_voices
from phoonnx_llasa.prompt import SpeechTokenizer
from phoonnx_llasa.synthesis import Synthesizer
from phoonnx_llasa.text import split_text


class LlasaAdapter(BaseOnnxAdapter):  # type: ignore[misc]
    """Speaks whole pieces on the session that the host has loaded.

    Without a preset every piece has a speaker of its own: the host's calls know nothing of each
    other. `LlasaVoice` does better.
    """

    #: The host's rule for adapters: what may be written while a request is served. The
    #: synthesizer belongs to the session, not to the request.
    MEMOIZED_WRITES = {"_attach": frozenset({"_synthesizer"})}  # noqa: RUF012  (the host's type)

    def __init__(self, synthesizer: Synthesizer | None = None) -> None:
        self._synthesizer = synthesizer
        self._attaching = threading.Lock()
        self._engine_params: Mapping[str, Any] = {}

    def default_params(self) -> dict[str, float]:
        """What the host shows and merges under a call's own parameters."""
        options = Options() if self._synthesizer is None else self._synthesizer.options({})
        return {
            "temperature": options.sampling.temperature,
            "top_p": options.sampling.top_p,
            "repetition_penalty": options.sampling.repetition_penalty,
            "max_chunk_chars": float(options.max_chunk_chars),
        }

    def param_labels(self) -> dict[str, str]:
        """Names for people."""
        return {
            "temperature": "sampling temperature",
            "top_p": "top-p (nucleus)",
            "repetition_penalty": "repetition penalty",
            "max_chunk_chars": "characters per piece",
        }

    @staticmethod
    def detect(config: dict[str, Any] | None = None, session: Any = None) -> bool:  # noqa: ARG004
        """Whether a config.json names this engine."""
        return bool(config and config.get("engine") == "llasa")

    def configure(self, voice_config: Any) -> None:
        """Keep the paths and the preset of the voice; nothing is loaded before it speaks."""
        self._engine_params = dict(getattr(voice_config, "engine_params", None) or {})

    def encode_text(self, text: str, voice: Any, syn_config: Any) -> list[list[int]]:
        """Split a text; gives the code points of each piece.

        Raises:
            ParameterError: an extra parameter is unknown or out of range.
            BundleError: the bundle's other files are missing or broken.
        """
        synthesizer = self._attach(voice.session, voice.model_path)
        extra = dict(getattr(syn_config, "extra_params", None) or {})
        options = spoken_options(synthesizer, self._engine_params, extra)
        return [list(map(ord, piece)) for piece in split_text(text, options.max_chunk_chars)]

    def synthesize(self, request: Any, session: Any) -> Any:
        """Speak one piece; gives float32 [hop_length * codes] in one go.

        Raises:
            UnsupportedError: a clip to clone was given.
            BundleError: the bundle's other files are missing or broken.
        """
        synthesizer = self._attach(session, None)
        params = dict(request.params)
        if params.get("reference_audio") is not None:
            raise no_cloning(synthesizer.voices)
        # The host mixes its own parameters in, so unknown names say nothing here; what the caller
        # wrote has been checked by `encode_text`.
        known = {**self._engine_params, **params, "stream": False}
        known["voice"] = params.get("voice") or self._engine_params.get("voice")
        options = spoken_options(synthesizer, known, {})
        text = "".join(map(chr, np.asarray(request.phoneme_ids).reshape(-1).tolist()))
        sound = [np.zeros(0, np.float32)]
        num_codes = 0
        with closing(synthesizer.synthesize(text, options)) as blocks:
            for block in blocks:
                sound.append(block.samples)
                num_codes += len(block.codes)
        return AdapterSynthesisResult(audio=np.concatenate(sound), extras={"codes": num_codes})

    def build_feed_dict(self, request: Any, session: Any) -> dict[str, Any]:
        """Part of the host's interface for graphs that run once; not for this engine."""
        raise NotImplementedError("Llasa runs its graph once per code; use synthesize()")

    def parse_outputs(self, outputs: Any, request: Any, output_names: Any = None) -> Any:
        """Part of the host's interface for graphs that run once; not for this engine."""
        raise NotImplementedError("Llasa runs its graph once per code; use synthesize()")

    def _attach(self, session: Any, model_path: str | None) -> Synthesizer:
        """Load what belongs to the session: codec, tokenizer, presets. Not the weights again."""
        with self._attaching:
            if self._synthesizer is None:
                self._synthesizer = _open_beside(session, model_path, self._engine_params)
            return self._synthesizer


def spoken_options(
    synthesizer: Synthesizer, defaults: Mapping[str, Any], extra_params: Mapping[str, Any]
) -> Options:
    """What a caller asked for, over the voice's own settings, over the bundle's.

    Args:
        defaults: the voice's engine params; names that are no options are passed over.
        extra_params: an empty ``voice`` counts as none given, as in the host.

    Raises:
        ParameterError: a name is unknown or a value out of range.
    """
    extra = dict(extra_params)
    if "voice" in extra and not extra["voice"]:
        del extra["voice"]
    return parse_options(extra, defaults={**synthesizer.bundle.config.inference, **defaults})


def no_cloning(voices: Voices) -> UnsupportedError:
    """The answer to a clip that is to be cloned."""
    names = ", ".join(sorted(voices.presets)) or "none in this bundle"
    return UnsupportedError(
        "Llasa cannot clone a clip here: that takes XCodec2's encoder, which bundles come without; "
        f"choose a preset with extra_params={{'voice': ...}} (there are: {names})"
    )


def _open_beside(session: Any, model_path: str | None, params: Mapping[str, Any]) -> Synthesizer:
    anchor = model_path or params.get("lm_weights_path") or params.get("codec_decoder_path")
    if not anchor:
        raise UnsupportedError(
            "this voice does not say where its files are; load it with TTSVoice.load or LlasaVoice"
        )
    folder = Path(anchor).parent
    config_path = folder / CONFIG_FILE
    config = read_config(config_path) if config_path.is_file() else BundleConfig()
    bundle = bundle_from_files(
        model=Path(model_path) if model_path else folder / config.files.model,
        codec=Path(params.get("codec_decoder_path") or folder / config.files.codec),
        tokenizer=Path(params.get("tokenizer_path") or folder / config.files.tokenizer),
        voices=Path(params.get("voices_path") or folder / config.files.voices),
        config=config_path if config_path.is_file() else None,
    )
    tokenizer = SpeechTokenizer(bundle.tokenizer, config.num_codes)
    return Synthesizer(
        bundle,
        tokenizer=tokenizer,
        language_model=LanguageModel(session, path=bundle.model),
        codec=_host_codec(bundle.codec, config, params.get("providers")),
        voices=Voices()
        if bundle.voices is None
        else read_voices(bundle.voices, num_codes=tokenizer.num_codes),
    )


def _host_codec(path: Path, config: BundleConfig, providers: Any) -> Codec:
    """A codec on a session of the host's, which keeps one per file."""
    from phoonnx.providers import make_session

    session = make_session(path, providers=providers)
    return Codec(session, hop_length=config.hop_length, sample_rate=config.sample_rate, path=path)
