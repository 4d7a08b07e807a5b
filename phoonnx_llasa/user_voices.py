"""Presets of the user's own: kept in the user's data folder, joined with those of a bundle.

A bundle is the same for everybody and may lie where nobody can write, so nothing is added to it.
Codes mean something only to the codec they were made with. So there is one file for each codec,
named by its decoder's fingerprint: Llasa models of all sizes share it, other models have others.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from phoonnx_llasa.bundle import Bundle
from phoonnx_llasa.errors import BundleError, PresetError, UserVoicesError
from phoonnx_llasa.files import atomic_writer, read_json
from phoonnx_llasa.presets import Preset, Voices, dump_voices, preset_entry, read_voices

LOG = logging.getLogger(__name__)

#: Bytes from both ends of a decoder that stand for all of it: weights differ everywhere, and a
#: gigabyte shall not be read to list a voice.
_SAMPLE_BYTES: Final = 64 << 10
#: Digits of the fingerprint in the file's name.
_DIGITS: Final = 32
#: A file larger than this was not written by us: a thousand presets of the longest kind are 4 MB.
_MAX_BYTES: Final = 16 << 20
#: Seconds to wait for another process that is saving a preset.
_PATIENCE: Final = 30.0

_Stamp = tuple[int, int, int]


def codec_fingerprint(codec: Path) -> str:
    """What tells codecs apart: 32 hexadecimal digits of a decoder's size, beginning and end.

    Raises:
        OSError: the file cannot be read.
    """
    with codec.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        digest.update(stream.read(_SAMPLE_BYTES))
        stream.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:_DIGITS]


def user_voices_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where files of a user's own presets lie; it may not be there yet.

    Raises:
        UserVoicesError: the user has no home folder.
    """
    data = Path(environment.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # the XDG specification says to ignore others
        try:
            data = Path.home() / ".local" / "share"
        except RuntimeError as error:
            raise UserVoicesError(
                "your data folder", f"cannot be found: {error}", hint="set XDG_DATA_HOME"
            ) from error
    return data / "phoonnx-llasa" / "voices"


def user_voices_file(codec: Path) -> Path:
    """The file of the user's own presets for a codec; it may not be there yet.

    Raises:
        UserVoicesError: the user has no home folder, or the decoder cannot be read.
    """
    folder = user_voices_folder()
    try:
        return folder / f"{codec_fingerprint(codec)}.json"
    except OSError as error:
        raise UserVoicesError(codec, f"cannot be read: {error}") from error


class JoinedVoices:
    """A bundle's presets joined with the user's own. Thread safe.

    The user's file is read again when it has changed, so a loaded voice finds a preset that is made
    later. Of two presets with one name the user's own counts: it was made on purpose, and an update
    of a bundle shall not change who speaks. The default voice stays the bundle's. A user's file
    that cannot be used is reported and left out.
    """

    def __init__(
        self,
        voices: Voices,
        codec: Path,
        *,
        num_codes: int,
        prepare: Callable[[Voices], Voices] = lambda voices: voices,
    ) -> None:
        """Join presets.

        Args:
            voices: the bundle's own.
            codec: the bundle's decoder.
            num_codes: entries of the codebook.
            prepare: is applied to both parts.
        """
        self._bundles = prepare(voices)
        self._num_codes = num_codes
        self._prepare = prepare
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._joined = self._bundles
        self._file_name: str | None = None
        try:
            self._file_name = f"{codec_fingerprint(codec)}.json"
        except OSError as error:
            LOG.debug("no presets of the user's own: %s", error)

    def now(self) -> Voices:
        """All presets, those included that were made meanwhile."""
        path = self._path()
        stamp = None if path is None else _stamp_of(path)
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                self._joined = self._bundles
                if path is not None and stamp is not None:
                    self._joined = self._read(path)
            return self._joined

    @property
    def stamp(self) -> _Stamp | None:
        """Changes with the user's file; None where there is none."""
        path = self._path()
        return None if path is None else _stamp_of(path)

    def _path(self) -> Path | None:
        # Bundles that are loaded are shared by whoever asks, also when the folder is another now.
        if self._file_name is None:
            return None
        try:
            return user_voices_folder() / self._file_name
        except UserVoicesError:
            return None

    def _read(self, path: Path) -> Voices:
        try:
            _check_size(path)
            own = self._prepare(read_voices(path, num_codes=self._num_codes))
        except BundleError as error:
            LOG.warning("your own voice presets are left out: %s", error)
            return self._bundles
        return _join(self._bundles, own)


def _stamp_of(path: Path) -> _Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def bundle_voices(bundle: Bundle, *, num_codes: int) -> JoinedVoices:
    """The presets of a bundle joined with the user's own, as they are in the files.

    Args:
        num_codes: entries of the codebook; codes must be below it.

    Raises:
        BundleError: the bundle's voices.json cannot be read.
    """
    found = Voices()
    if bundle.voices is not None:
        found = read_voices(bundle.voices, num_codes=num_codes)
    return JoinedVoices(found, bundle.codec, num_codes=num_codes)


def save_preset(codec: Path, preset: Preset, *, replace_own: bool = False) -> Path:
    """Add a preset to the user's own for a codec.

    Others that are saved at the same time, by this process or another, are kept.

    Args:
        codec: the decoder that the codes are for.
        preset: checked already, see `make_preset`.
        replace_own: whether a preset of this name may be replaced.

    Returns:
        The file.

    Raises:
        PresetError: there is a preset of this name.
        UserVoicesError: the file cannot be written, or is not a voices.json.
    """
    path = user_voices_file(codec)
    with _changed(path) as presets:
        if preset.name in presets and not replace_own:
            raise PresetError(preset.name, "you have a preset of this name already")
        presets[preset.name] = preset_entry(preset)
    return path


def remove_preset(codec: Path, name: str) -> Path:
    """Take a preset out of the user's own for a codec, a broken one too.

    Returns:
        The file.

    Raises:
        PresetError: the user has no preset of this name.
        UserVoicesError: the file cannot be written, or is not a voices.json.
    """
    path = user_voices_file(codec)
    if not path.exists():  # nothing is made only to find that out
        raise PresetError(name, _NOT_OWN)
    with _changed(path) as presets:
        if name not in presets:
            raise PresetError(name, _NOT_OWN)
        del presets[name]
    return path


_NOT_OWN: Final = "is none of your own for this model; a model's own presets cannot be removed"


@contextmanager
def _changed(path: Path) -> Iterator[dict[str, Any]]:
    """The presets of a file as plain JSON, written back when the block ends well.

    Entries are not looked into: one that is broken stays for its owner to mend.
    """
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=_PATIENCE):
            presets = _entries(path)
            yield presets
            content = dump_voices(None, presets)
            if len(content) > _MAX_BYTES:  # it would not be read any more
                raise UserVoicesError(
                    path, "is full", hint="`phoonnx-llasa remove-voice` makes room"
                )
            # what a link leads to: some keep such files in a folder of their own
            with atomic_writer(path.resolve()) as stream:
                stream.write(content)
    except Timeout as error:
        raise UserVoicesError(
            path, f"another process has been writing it for {_PATIENCE:g} s", hint="try again"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise UserVoicesError(
            path, f"cannot be written: {error}", hint="XDG_DATA_HOME names another data folder"
        ) from error


def _entries(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        _check_size(path)
        data = read_json(path)
    except BundleError as error:
        raise UserVoicesError(path, "is kept as it is", hint=f"mend or move it: {error}") from error
    presets = data.get("presets") if isinstance(data, dict) else None
    if not isinstance(presets, dict):
        raise UserVoicesError(
            path, 'has no object "presets" in it', hint="mend or move it; nothing was changed"
        )
    return dict(presets)


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BundleError(path, f"cannot be read: {error}") from error
    if size > _MAX_BYTES:
        raise BundleError(path, f"is {size >> 20} MB long, too much for a file of presets")


def _join(bundles: Voices, own: Voices) -> Voices:
    presets = {**bundles.presets, **own.presets}
    broken = {
        name: error
        for name, error in (*own.broken.items(), *bundles.broken.items())
        if name not in presets
    }
    return replace(
        bundles,
        presets=MappingProxyType(presets),
        broken=MappingProxyType(broken),
        own=frozenset(own.presets),
    )
