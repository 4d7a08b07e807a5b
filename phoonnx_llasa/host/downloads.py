"""The files of a voice fetched, checked and deleted, in the hub's cache and beside it."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from huggingface_hub import constants as hub_constants
from huggingface_hub import hf_hub_download, scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from phoonnx import model_manager
from phoonnx.model_manager import TTSModelInfo, TTSModelManager

from phoonnx_llasa.bundle import Bundle, BundleConfig, hub_errors, read_config
from phoonnx_llasa.checksums import SUMS_FILE, changed_files
from phoonnx_llasa.encoder import ENCODER_FILE
from phoonnx_llasa.errors import BundleError, DownloadError, UnsupportedError
from phoonnx_llasa.graph.external_data import external_extents
from phoonnx_llasa.host.catalogue import (
    AUX_FILES,
    SCHEME,
    cached_bundle,
    cached_file,
    entry_bundle,
    known_size,
    licence_of,
    llasa_entries,
    sibling_url,
)

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, HFCacheInfo

LOG = logging.getLogger(__name__)

#: Room to leave on a disk beside what is downloaded.
_MARGIN_BYTES: Final = 64 << 20

#: Seconds to wait for a server that is asked for a file's length.
_TIMEOUT: Final = 10

_HUB_URL: Final = re.compile(
    r"https?://huggingface\.co/([^/]+/[^/]+)/(?:resolve|raw)/([^/]+)/([^?]+)"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A download before it is done."""

    info: TTSModelInfo
    license: str | None
    """Of the weights; None where its config.json does not exist."""
    files: tuple[tuple[str, bool], ...]
    """Addresses of what is still to be fetched, and whether each may turn out not to exist."""
    size: int | None
    """Bytes to fetch; None where nobody knows."""
    force: bool


def is_built_in(info: TTSModelInfo) -> bool:
    """Whether the files of an entry come with this package."""
    return str(info.model_url).startswith(SCHEME)


def plan_download(info: TTSModelInfo, *, force: bool = False) -> Plan:
    """Find out what a download takes. Fetches config.json, which says the licence.

    Args:
        force: fetch anew what is here already.

    Raises:
        DownloadError: there is no network, or a file does not exist.
        BundleError: config.json cannot be used.
        UnsupportedError: the voice is built in.
    """
    if is_built_in(info):
        raise UnsupportedError(f"{info.voice_id} is built in; there is nothing to download")
    with _of_voice(info):
        return _plan(info, force=force)


def _plan(info: TTSModelInfo, *, force: bool) -> Plan:
    if info.config_url:
        _fetch(info.config_url, force=force)
    config, license_ = _config_of(info), licence_of(info)
    files: list[tuple[str, bool]] = []
    sizes: list[int | None] = []
    for url, optional in _files_of(info, config):
        if url == info.config_url:
            continue
        try:
            size = _size_to_fetch(url, force=force)
        except DownloadError:
            if optional:
                continue
            raise
        if size != 0:
            files.append((url, optional))
            sizes.append(0 if size is None and optional else size)
    total = known_size(info) if None in sizes else sum(filter(None, sizes))
    return Plan(info, license_, tuple(files), total, force)


def check_space(plan: Plan) -> None:
    """Make sure that a download finds room.

    Raises:
        DownloadError: there is too little; says how much there is and where.
    """
    if plan.size is None:
        return
    folder = cache_folder()
    free = shutil.disk_usage(_existing(folder)).free
    if free < plan.size + _MARGIN_BYTES:
        raise DownloadError(
            plan.info.voice_id,
            f"takes {human_bytes(plan.size)}, and there are {human_bytes(free)} free in {folder}",
            hint="free some, or set HF_HOME to a folder on another disk",
        )


def fetch(plan: Plan) -> Bundle:
    """Do a download; files that are complete already are kept.

    Raises:
        DownloadError: a file cannot be fetched.
        BundleError: what was fetched cannot be used.
    """
    with _of_voice(plan.info):
        for url, optional in plan.files:
            try:
                _fetch(url, force=plan.force)
            except DownloadError as error:
                if not optional:
                    raise
                LOG.info("going on without a file: %s", error)
    return entry_bundle(plan.info)[0]


@contextmanager
def _of_voice(info: TTSModelInfo) -> Iterator[None]:
    """Say in an error about a file whose file it is."""
    try:
        yield
    except DownloadError as error:
        raise DownloadError(info.voice_id, f"a file cannot be fetched: {error}") from error


def check_sums(bundle: Bundle) -> bool:
    """Hold a bundle's files against the SHA256SUMS beside them. Reads every byte.

    Returns:
        Whether there is such a list.

    Raises:
        BundleError: a file is not what it should be.
    """
    sums = bundle.model.parent / SUMS_FILE
    if not sums.is_file():
        return False
    weights = [bundle.model.parent / name for name in external_extents(bundle.model)]
    paths = [bundle.model, *weights, bundle.codec, bundle.tokenizer, bundle.voices]
    for path in changed_files([path for path in paths if path is not None], sums):
        raise BundleError(path, f"is not what {SUMS_FILE} says", hint="fetch it again: --force")
    return True


@dataclass(frozen=True, slots=True)
class Removal:
    """The files of a voice, before they are deleted."""

    paths: tuple[Path, ...]
    """As one sees them; in the hub's cache they are links."""
    freed: int
    """Bytes."""
    others: tuple[str, ...]
    """Ids of voices that have the same files and go as well."""


def plan_removal(info: TTSModelInfo, manager: TTSModelManager) -> Removal:
    """Find the files of a voice on this machine.

    Raises:
        UnsupportedError: the voice is built in.
        DownloadError: nothing of it is here.
    """
    cached, direct = _own_files(info, manager)
    if not cached and not direct:
        raise DownloadError(info.voice_id, "is not downloaded, so there is nothing to remove")
    freed = sum(path.stat().st_size for path in direct)
    if cached:
        freed += scan_cache_dir(cache_folder()).delete_files(*cached).expected_freed_size
    others = [
        other.voice_id
        for other in llasa_entries(manager)
        if other.model_url == info.model_url and other.voice_id != info.voice_id
    ]
    paths = sorted([*direct, *(file.file_path for file in cached)])
    return Removal(tuple(paths), freed, tuple(others))


def remove(info: TTSModelInfo, manager: TTSModelManager) -> None:
    """Delete the files of a voice. What another model has as well stays.

    Raises:
        UnsupportedError: the voice is built in.
        OSError: a file cannot be deleted.
    """
    cached, direct = _own_files(info, manager)
    for path in direct:
        path.unlink(missing_ok=True)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    if not cached:
        return
    scan_cache_dir(cache_folder()).delete_files(*cached).execute()
    folders = {repo for file in cached if (repo := _repo_folder(file.file_path))}
    # An empty revision is of no use, and its name would say that something is here.
    cache = scan_cache_dir(cache_folder())
    empty = [
        revision.commit_hash
        for repo in cache.repos
        if repo.repo_path in folders
        for revision in repo.revisions
        if not revision.files
    ]
    if empty:
        cache.delete_revisions(*empty).execute()


def cache_folder() -> Path:
    """Where downloads lie; it may not be there yet."""
    return Path(hub_constants.HF_HUB_CACHE).expanduser().resolve()


def human_bytes(count: int) -> str:
    """A number of bytes for people: 6.25 GB."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _files_of(info: TTSModelInfo, config: BundleConfig) -> Iterator[tuple[str, bool]]:
    """The addresses of an entry's files, and whether one may be missing. None comes twice."""
    named = {key: url for key, url in (info.aux_model_urls or {}).items() if url}
    required = [url for url in (info.config_url, info.model_url) if url]
    optional: list[str] = []
    for key, part in AUX_FILES.items():
        url = named.pop(key, None)
        found = url or sibling_url(info.model_url, getattr(config.files, part))
        (optional if part == "voices" and url is None else required).append(found)
    required += named.values()
    optional += [_weights_url(url) for url in required if url.partition("?")[0].endswith(".onnx")]
    optional.append(sibling_url(info.model_url, SUMS_FILE))
    yield from ((url, False) for url in dict.fromkeys(required))
    yield from ((url, True) for url in dict.fromkeys(optional) if url not in required)


def _weights_url(url: str) -> str:
    head, mark, query = url.partition("?")
    return f"{head}_data{mark}{query}"


def _config_of(info: TTSModelInfo) -> BundleConfig:
    path = cached_file(info.config_url) if info.config_url else None
    return BundleConfig() if path is None else read_config(path)


def _size_to_fetch(url: str, *, force: bool) -> int | None:
    """Bytes; 0 if the file is here, None where the server does not say."""
    place = _HUB_URL.match(url)
    if place is None:
        return 0 if cached_file(url) is not None and not force else _told_length(url)
    with hub_errors(url):
        told: Any = hf_hub_download(place[1], place[3], revision=place[2], dry_run=True)
    if not force and not told.will_download:
        return 0
    return None if told.file_size is None else max(1, int(told.file_size))


def _told_length(url: str) -> int | None:
    """What another server than the hub says of a file's length."""
    import requests

    try:
        answer = requests.head(url, allow_redirects=True, timeout=_TIMEOUT)
        answer.raise_for_status()
        return max(1, int(answer.headers["Content-Length"]))
    except (requests.RequestException, KeyError, ValueError):
        return None


def _fetch(url: str, *, force: bool) -> None:
    place = _HUB_URL.match(url)
    if place is not None:
        with hub_errors(url):
            hf_hub_download(place[1], place[3], revision=place[2], force_download=force)
        return
    before = cached_file(url) if force else None
    aside = before.with_name(before.name + ".old") if before is not None else None
    if before is not None and aside is not None:
        before.replace(aside)  # the host fetches only what is not there
    try:
        with hub_errors(url):  # what the host raises for other servers is an OSError too
            model_manager._resolve(url)
    except BaseException:
        if before is not None and aside is not None:
            aside.replace(before)
        raise
    if aside is not None:
        aside.unlink()


def _own_files(
    info: TTSModelInfo, manager: TTSModelManager
) -> tuple[list[CachedFileInfo], list[Path]]:
    """An entry's files in the hub's cache, and those that lie beside it."""
    if is_built_in(info):
        raise UnsupportedError(f"{info.voice_id} is built in and cannot be removed")
    urls = set(_removable(info)) - {
        url
        for other in llasa_entries(manager)
        if other.model_url != info.model_url and _is_here(other)
        for url, _ in _files_of(other, _config_of(other))
    }
    try:
        cache = scan_cache_dir(cache_folder())
    except (CacheNotFound, ValueError):
        return [], []
    places = {(place[1], place[2], place[3]) for url in urls if (place := _HUB_URL.match(url))}
    direct = [
        path for url in urls if not _HUB_URL.match(url) and (path := cached_file(url)) is not None
    ]
    return list(_cached_files(cache, places)), direct


def _removable(info: TTSModelInfo) -> Iterator[str]:
    try:
        config = _config_of(info)
    except BundleError as error:
        LOG.info("%s: its files have their usual names: %s", info.voice_id, error)
        config = BundleConfig()
    yield from (url for url, _ in _files_of(info, config))
    yield sibling_url(info.model_url, ENCODER_FILE)
    model = cached_file(info.model_url)
    try:
        names: Iterable[str] = external_extents(model) if model is not None else ()
    except BundleError:  # one may want to remove it for that very reason
        names = ()
    yield from (sibling_url(info.model_url, name) for name in names)


def _is_here(info: TTSModelInfo) -> bool:
    try:
        return cached_bundle(info) is not None
    except BundleError:
        return True  # a part of it is, which is not ours to delete


def _cached_files(
    cache: HFCacheInfo, places: set[tuple[str, str, str]]
) -> Iterator[CachedFileInfo]:
    """Files of the hub's cache by repository, revision and path.

    Revisions that no name leads to any more are what updates leave behind; they count as well.
    """
    for repo in cache.repos:
        if repo.repo_type != "model":
            continue
        for revision in repo.revisions:
            names = {*revision.refs, revision.commit_hash}
            for file in revision.files:
                path = file.file_path.relative_to(revision.snapshot_path).as_posix()
                if any(
                    place[0] == repo.repo_id
                    and place[2] == path
                    and (place[1] in names or not revision.refs)
                    for place in places
                ):
                    yield file


def _repo_folder(path: Path) -> Path | None:
    return next((parent.parent for parent in path.parents if parent.name == "snapshots"), None)


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)
