"""Voice ids: our own entries, where the files of an entry are, and any entry of the host by id."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from phoonnx import model_manager
from phoonnx.model_manager import TTSModelInfo, TTSModelManager

from phoonnx_llasa.bundle import Bundle, BundleConfig, bundle_from_files, read_config
from phoonnx_llasa.errors import BundleError, DownloadError, UnknownVoiceError
from phoonnx_llasa.files import read_json

LOG = logging.getLogger(__name__)

#: Our entries, in the format of the host's own index files.
INDEX_FILE: Final = Path(__file__).parent / "voice_index" / "phoonnx_llasa.json"

#: Scheme of files that come with this package. The host keeps entries in a cache that outlives
#: the environment, so an entry must not hold the path of one.
SCHEME: Final = "phoonnx-llasa:"

#: The published Llasa-1B, whose licence and size are known before anything of it is here. Entries
#: hold nothing but what the host's class has fields for.
_PUBLISHED_MODEL: Final = (
    "https://huggingface.co/OpenVoiceOS/phoonnx-llasa/resolve/main/llasa-1b-onnx/model.onnx"
)
_PUBLISHED_BYTES: Final = 6_250_000_000

_PACKAGE: Final = Path(__file__).parents[1]
_PACKAGE_URL: Final = re.compile(re.escape(SCHEME) + r"(\w[\w.-]*(?:/\w[\w.-]*)*)", re.ASCII)

#: engine_params of the host -> field of `BundleFiles`; the names are the published entries'.
AUX_FILES: Final[Mapping[str, str]] = {
    "codec_decoder_path": "codec",
    "tokenizer_path": "tokenizer",
    "voices_path": "voices",
}


@dataclass(frozen=True, slots=True)
class Listing:
    """One Llasa voice of the catalogue, as a list of voices shows it."""

    voice_id: str
    lang: str
    display_name: str
    downloaded: bool
    license: str | None
    """Of the weights; None while nobody knows: its config.json is not here."""
    built_in: bool = False
    """Its files come with this package."""
    size: int | None = None
    """Bytes: of the files that are here if it is downloaded, else of the download; None where
    nobody knows. Voices of one model have the same files."""
    problem: str = ""
    """What is wrong with the files that are here."""


def package_file(url: str) -> Path:
    """The path of a file that comes with this package.

    Args:
        url: ``phoonnx-llasa:`` and a path inside of the package, with ``/``.

    Raises:
        BundleError: the path is none, or leads out of the package.
        LocalEntryNotFoundError: there is no such file; the host takes it as "not published".
    """
    match = _PACKAGE_URL.fullmatch(url)
    if match is None:
        raise BundleError(url, "names no file of the phoonnx-llasa package")
    path = _PACKAGE / match[1]
    if not path.is_file():
        raise LocalEntryNotFoundError(f"{url}: phoonnx-llasa comes without this file")
    return path


def is_llasa(info: TTSModelInfo) -> bool:
    """Whether an entry of the host is for this engine.

    Where the entry itself does not say, its config.json does, which the host reads first of all
    when it loads a voice.
    """
    engine = info.engine if info.engine is not None else info.config.engine
    return bool(getattr(engine, "value", engine) == "llasa")


def our_entries() -> Mapping[str, Mapping[str, Any]]:
    """Our index: voice id -> fields of the host's ``TTSModelInfo``."""
    entries: dict[str, dict[str, Any]] = read_json(INDEX_FILE)
    return entries


def list_voices(manager: TTSModelManager | None = None) -> list[Listing]:
    """All Llasa voices that the host knows of, ours and its own; no network.

    Args:
        manager: whose registry counts too; None reads the bundled indexes only.
    """
    return [_listing(info) for info in llasa_entries(manager)]


def llasa_entries(manager: TTSModelManager | None = None) -> list[TTSModelInfo]:
    """The entries of all Llasa voices that the host knows of, by their ids; no network.

    Args:
        manager: whose registry counts too; None reads the bundled indexes only.
    """
    found: dict[str, TTSModelInfo] = {}
    for index in _indexes(manager or TTSModelManager):
        for voice_id, entry in index.items():
            if entry.get("engine") == "llasa" and (info := _make_info(voice_id, entry)):
                found.setdefault(voice_id, info)
    if manager is not None:
        found |= {v: info for v, info in manager.voices.items() if info.engine == "llasa"}
    return [found[voice_id] for voice_id in sorted(found)]


def find_voice(manager: TTSModelManager, voice_id: str) -> TTSModelInfo:
    """The entry of a voice id: in the manager's registry, a bundled index, or its cache on disk.

    Any voice of the host, not only Llasa's. The registry is left as it is, and nothing is
    downloaded. Of two indexes with the same id the later one counts, as when the host merges them.

    Raises:
        UnknownVoiceError: nobody knows the id; it names the ones that are close.
    """
    if (known := manager.get_voice(voice_id)) is not None:
        return known
    ids = set(manager.voices)
    for index in [*_indexes(manager), manager.cache]:
        if voice_id in index and (info := _make_info(voice_id, index[voice_id])):
            return info
        ids.update(index)
    raise UnknownVoiceError(str(voice_id), get_close_matches(str(voice_id), sorted(ids), n=3))


def entry_bundle(info: TTSModelInfo) -> tuple[Bundle, dict[str, Any]]:
    """The files of a Llasa entry, through the host's own downloads, and its engine params.

    An entry that does not name the codec, tokenizer or voices gets the ones beside its model.

    Raises:
        DownloadError: a file is neither there nor to be had.
        BundleError: what was found cannot be used.
    """
    try:
        config = info.hub_path(info.config_url)
        read = BundleConfig() if config is None else read_config(config)
        model = info.download_model()
        params: dict[str, Any] = info.engine_params()
        for key, part in AUX_FILES.items():
            if key not in params:
                path = _beside(info, getattr(read.files, part), optional=part == "voices")
                params |= {} if path is None else {key: str(path)}
    except (OSError, EntryNotFoundError) as error:
        raise DownloadError(info.voice_id, f"a file cannot be fetched: {error}") from error
    return _bundle(model, params, config), params


def cached_bundle(info: TTSModelInfo) -> Bundle | None:
    """The files of a Llasa entry if all of them are here already; never asks the network.

    Raises:
        BundleError: what was found cannot be used.
    """
    urls = {"config": info.config_url, "model": info.model_url, **(info.aux_model_urls or {})}
    files = {key: path for key, url in urls.items() if url and (path := cached_file(url))}
    if len(files) < sum(map(bool, urls.values())):
        return None
    config = files.get("config")
    read = BundleConfig() if config is None else read_config(config)
    for key, part in AUX_FILES.items():
        if key not in files:
            path = cached_file(sibling_url(info.model_url, getattr(read.files, part)))
            if path is not None:
                files[key] = path
            elif part != "voices":
                return None
    return _bundle(files["model"], files, config)


def cached_file(url: str) -> Path | None:
    """Where a file of an entry lies on this machine; None if it does not. No network."""
    # The host has no public name for this question.
    ask = getattr(model_manager, "_cached_path", None)
    path = ask(url) if ask else None
    return None if path is None else Path(path)


def _bundle(model: Path, files: Mapping[str, Any], config: Path | None) -> Bundle:
    voices = files.get("voices_path")
    return bundle_from_files(
        model=model,
        codec=Path(files["codec_decoder_path"]),
        tokenizer=Path(files["tokenizer_path"]),
        voices=None if voices is None else Path(voices),
        config=config,
    )


def _beside(info: TTSModelInfo, name: str, *, optional: bool) -> Path | None:
    url = sibling_url(info.model_url, name)
    try:
        # A graph comes with its weights, which the host fetches for a model only.
        is_graph = name.endswith(".onnx")
        path = replace(info, model_url=url).download_model() if is_graph else info.hub_path(url)
    except (OSError, EntryNotFoundError) as error:
        if not optional:
            raise
        LOG.info("%s has no voice presets: %s", info.voice_id, error)
        return None
    return Path(path)


def sibling_url(url: str, name: str) -> str:
    """The URL of a file in the same folder as another's; its query is kept as it is."""
    path, mark, query = url.partition("?")
    head = path.rpartition("/")[0]
    return f"{head}/{name}{mark}{query}"


def _indexes(manager: TTSModelManager | type[TTSModelManager]) -> Iterator[Mapping[str, Any]]:
    """All bundled indexes, the one that counts most first; a broken one is left out."""
    for path in reversed(manager.voice_index_files()):
        try:
            index = read_json(path)
        except BundleError as error:
            LOG.warning("skipping a voice index: %s", error)
            continue
        if isinstance(index, dict):
            yield index


def _make_info(voice_id: str, entry: Mapping[str, Any]) -> TTSModelInfo | None:
    try:
        return TTSModelInfo(**entry)
    except Exception as error:  # noqa: BLE001  (whatever a foreign entry does to the host's class)
        LOG.warning("skipping a broken entry of voice %r: %s", voice_id, error)
        return None


def licence_of(info: TTSModelInfo) -> str | None:
    """The licence of an entry's weights as far as it is known here; no network.

    Raises:
        BundleError: its config.json is here and cannot be used.
    """
    config = cached_file(info.config_url) if info.config_url else None
    if config is not None:
        return read_config(config).license
    return BundleConfig().license if info.model_url == _PUBLISHED_MODEL else None


def known_size(info: TTSModelInfo) -> int | None:
    """Bytes that an entry's files take, as far as the catalogue knows."""
    return _PUBLISHED_BYTES if info.model_url == _PUBLISHED_MODEL else None


def _listing(info: TTSModelInfo) -> Listing:
    bundle, license_, problem = None, None, ""
    try:
        license_ = licence_of(info)
        bundle = cached_bundle(info)
    except BundleError as error:
        problem = str(error)
    if bundle is not None:
        license_ = bundle.config.license
    return Listing(
        voice_id=info.voice_id,
        lang=info.lang,
        display_name=info.display_name or "",
        downloaded=bundle is not None,
        license=license_,
        built_in=str(info.model_url).startswith(SCHEME),
        size=known_size(info) if bundle is None else bundle.num_bytes,
        problem=problem,
    )
