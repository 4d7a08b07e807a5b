"""What a model is on disk: config.json read and checked, files found locally or on the hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from phoonnx_llasa.errors import BundleError, ConfigError, DownloadError
from phoonnx_llasa.files import is_file, is_plain_name, is_text, read_json

LOG = logging.getLogger(__name__)

CONFIG_FILE: Final = "config.json"

#: The Llama-3.2-Instruct chat template around upstream's instruction (HKUSTAudio/Llasa-1B, model
#: card). ``apply_chat_template`` writes the day it runs on into the system block; it is frozen
#: here so that the same text always gives the same ids.
LLASA_PROMPT: Final = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "Convert the text to speech:"
    "<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|>"
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    "<|SPEECH_GENERATION_START|>"
)

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """Names of a bundle's files, all in one folder."""

    model: str = "model.onnx"
    """The language model's graph; it names its own weights file."""
    codec: str = "xcodec2_decoder.onnx"
    tokenizer: str = "tokenizer.json"
    voices: str = "voices.json"
    """May be absent: then the model invents a speaker."""


@dataclass(frozen=True, slots=True)
class BundleConfig:
    """config.json after all checks. The defaults are the published Llasa-1B bundle's."""

    lang_code: str = "en"
    sample_rate: int = 16_000
    """Hertz."""
    hop_length: int = 320
    """Samples per code."""
    num_codes: int | None = None
    """Entries of the codebook; None takes as many as the tokenizer has speech tokens."""
    context_length: int = 2048
    """Tokens: prompt and generated codes together."""
    prompt: str = LLASA_PROMPT
    """Control tokens and words around ``{text}``."""
    inference: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """Defaults of this model for what ``extra_params`` may set."""
    single_speaker: bool = False
    """The model has one voice only, so that no speaker is carried from piece to piece."""
    license: str = "CC BY-NC 4.0"
    source: str = ""
    files: BundleFiles = field(default_factory=BundleFiles)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A model whose files are all there."""

    config: BundleConfig
    model: Path
    codec: Path
    tokenizer: Path
    voices: Path | None

    @property
    def num_bytes(self) -> int:
        """What the files take on disk, the weights beside a graph included."""
        from phoonnx_llasa.graph.external_data import external_extents

        # A codec is usually one large file, which is not read to find that out.
        beside = [self.codec.with_name(self.codec.name + "_data")]
        beside += [self.model.parent / name for name in external_extents(self.model)]
        paths = {self.model, self.codec, self.tokenizer, *filter(is_file, beside)}
        if self.voices is not None:
            paths.add(self.voices)
        return sum(path.stat().st_size for path in paths)


def parse_config(data: object, *, where: Path | str) -> BundleConfig:
    """Check what config.json holds, field by field. Unknown fields are ignored.

    Args:
        data: the parsed JSON.
        where: the file, for the messages.

    Raises:
        ConfigError: a field has the wrong type or an impossible value; it names the field.
    """
    root = _Fields(data, "", where)
    engine = root.text("engine", "")
    if engine != "llasa":
        raise ConfigError(where, "engine", engine or None, '"llasa"')
    llasa = root.section("llasa")
    prompt = llasa.text("prompt", LLASA_PROMPT)
    if prompt.count("{text}") != 1:
        raise ConfigError(where, "llasa.prompt", prompt, "a template with {text} in it, once")
    names = llasa.section("files")
    return BundleConfig(
        lang_code=root.text("lang_code", "en"),
        sample_rate=root.section("audio").integer("sample_rate", 16_000, 8_000, 192_000),
        hop_length=llasa.integer("hop_length", 320, 1, 10_000),
        num_codes=llasa.integer("num_codes", 0, 1, 1 << 24) or None,
        context_length=llasa.integer("context_length", 2048, 64, 1 << 17),
        prompt=prompt,
        inference=MappingProxyType(dict(root.section("inference").values)),
        single_speaker=llasa.boolean("single_speaker", False),
        license=llasa.text("license", "CC BY-NC 4.0"),
        source=llasa.text("source", ""),
        files=BundleFiles(
            model=names.file_name("model", "model.onnx"),
            codec=names.file_name("codec", "xcodec2_decoder.onnx"),
            tokenizer=names.file_name("tokenizer", "tokenizer.json"),
            voices=names.file_name("voices", "voices.json"),
        ),
    )


def read_config(path: Path) -> BundleConfig:
    """Read and check one config.json.

    Raises:
        BundleError: the file is missing or no JSON.
        ConfigError: a field cannot be used.
    """
    return parse_config(read_json(path), where=path)


def open_bundle(folder: Path) -> Bundle:
    """Find the files of a bundle in a local folder.

    Raises:
        BundleError: a file is missing, empty or cut short; config.json cannot be used.
    """
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        raise BundleError(folder, f"cannot be entered: {error}") from error
    if not is_folder:
        raise BundleError(folder, "is not a folder", hint="name the folder that holds config.json")
    config = read_config(folder / CONFIG_FILE)
    names = config.files
    voices = folder / names.voices
    return _checked(
        Bundle(
            config=config,
            model=folder / names.model,
            codec=folder / names.codec,
            tokenizer=folder / names.tokenizer,
            voices=voices if is_file(voices) else None,
        )
    )


def bundle_from_files(
    *, model: Path, codec: Path, tokenizer: Path, voices: Path | None, config: Path | None
) -> Bundle:
    """Make a bundle of files that lie wherever a downloader put them.

    Args:
        config: a config.json, or None for the published bundle's defaults.

    Raises:
        BundleError: a file is missing, empty or cut short; config.json cannot be used.
    """
    read = BundleConfig() if config is None else read_config(config)
    return _checked(
        Bundle(config=read, model=model, codec=codec, tokenizer=tokenizer, voices=voices)
    )


def fetch_bundle(
    repo_id: str,
    *,
    subfolder: str = "",
    revision: str = "main",
    local_files_only: bool = False,
) -> Bundle:
    """Find the files of a bundle in the hub's cache, downloading what is not there yet.

    Works without a network once everything is cached.

    Args:
        repo_id: ``owner/name`` on the Hugging Face hub.
        subfolder: the bundle's folder inside the repository.
        revision: branch, tag or commit.
        local_files_only: never ask the network.

    Raises:
        DownloadError: a file is neither in the cache nor to be had.
        BundleError: what was found cannot be used.
    """
    from phoonnx_llasa.graph.external_data import external_extents

    def fetch(name: str) -> Path:
        return _fetch_file(repo_id, name, subfolder, revision, local_files_only)

    config = read_config(fetch(CONFIG_FILE))
    model = fetch(config.files.model)
    for sidecar in external_extents(model):
        fetch(sidecar)
    try:
        voices: Path | None = fetch(config.files.voices)
    except DownloadError as error:
        LOG.warning("no voice presets: %s", error)
        voices = None
    return _checked(
        Bundle(
            config=config,
            model=model,
            codec=fetch(config.files.codec),
            tokenizer=fetch(config.files.tokenizer),
            voices=voices,
        )
    )


def _fetch_file(
    repo_id: str, name: str, subfolder: str, revision: str, local_files_only: bool
) -> Path:
    from huggingface_hub import hf_hub_download

    where = "/".join(part for part in (repo_id, subfolder, name) if part) + f"@{revision}"
    with hub_errors(where):
        return Path(
            hf_hub_download(
                repo_id,
                name,
                subfolder=subfolder or None,
                revision=revision,
                local_files_only=local_files_only,
            )
        )


@contextmanager
def hub_errors(where: str) -> Iterator[None]:
    """Make errors of ours of what huggingface_hub raises.

    Args:
        where: the file, for the message.

    Raises:
        DownloadError: the file is neither in the cache nor to be had.
    """
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        yield
    except LocalEntryNotFoundError as error:
        raise DownloadError(
            where,
            "is not in the hub's cache and the hub cannot be reached",
            hint="connect once, or set HF_HOME to a cache that holds it",
        ) from error
    except EntryNotFoundError as error:
        raise DownloadError(where, "does not exist on the hub") from error
    except Exception as error:  # the client passes on what its transports raise
        raise DownloadError(where, f"cannot be fetched: {error}") from error


def _checked(bundle: Bundle) -> Bundle:
    from phoonnx_llasa.graph.external_data import check_sidecars

    for path in (bundle.model, bundle.codec, bundle.tokenizer):
        if not is_file(path):
            raise BundleError(path, "is missing", hint="the bundle is incomplete; fetch it again")
        if path.stat().st_size == 0:
            raise BundleError(path, "is empty", hint="the download failed; fetch it again")
    check_sidecars(bundle.model)
    if bundle.voices is not None and not is_file(bundle.voices):
        LOG.warning("%s is missing; the model will invent a speaker", bundle.voices)
        return replace(bundle, voices=None)
    return bundle


class _Fields:
    """One JSON object of config.json; every read checks the type and names the field."""

    def __init__(self, values: object, prefix: str, where: Path | str) -> None:
        if not isinstance(values, dict):
            name = prefix.rstrip(".") or "(whole file)"
            raise ConfigError(where, name, values, "a JSON object")
        self.values: dict[str, Any] = values
        self._prefix = prefix
        self._where = where

    def section(self, name: str) -> _Fields:
        value = self.values.get(name)
        return _Fields({} if value is None else value, f"{self._prefix}{name}.", self._where)

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or not is_text(value):
            raise self._wrong(name, "a string of valid characters")
        return value

    def integer(self, name: str, default: int, lowest: int, highest: int) -> int:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise self._wrong(name, f"an integer from {lowest} to {highest}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def file_name(self, name: str, default: str) -> str:
        value = self.text(name, default)
        if not is_plain_name(value):
            raise self._wrong(name, "a plain file name in the bundle's own folder")
        return value

    def _wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(self._where, f"{self._prefix}{name}", self.values[name], expected)
