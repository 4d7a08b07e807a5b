"""Files read with checks and written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, Final

from phoonnx_llasa.errors import BundleError

#: Bytes of a file's name; no common file system takes more.
_LONGEST_NAME: Final = 255


def is_plain_name(name: str) -> bool:
    """Whether a name is one of a file in the same folder, on any operating system."""
    return (
        bool(name)
        and name not in {".", ".."}
        and PurePosixPath(name).name == name
        and PureWindowsPath(name).name == name
        and "\0" not in name
        and len(name.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME
    )


def is_text(value: str) -> bool:
    """Whether a string has no lone surrogates, which JSON can hold and nothing can encode."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def is_file(path: Path) -> bool:
    """Whether there is a file that can be reached; a forbidden folder is an answer, no error."""
    try:
        return path.is_file()
    except OSError:  # Python 3.11 raises where a folder on the way may not be entered
        return False


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        BundleError: the file is missing, empty or no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError as error:
        raise BundleError(path, "is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(path, f"cannot be read: {error}") from error
    if not text.strip():
        raise BundleError(path, "is empty", hint="the download failed; fetch it again")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(path, f"is not valid JSON: {error}") from error


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary name in the same folder, renamed when the block ends well.

    Whatever goes wrong, Ctrl-C included, ``path`` is as it was and nothing is left behind.

    Raises:
        OSError: the folder cannot be written to.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".phoonnx-llasa.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_mode_of(path))
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _mode_of(path: Path) -> int:
    """The permissions of the file that is replaced, or those of any new file.

    mkstemp's own let nobody but the owner read it.
    """
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask
