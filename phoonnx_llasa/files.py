"""Files read with checks and written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from phoonnx_llasa.errors import BundleError


def is_plain_name(name: str) -> bool:
    """Whether a name is one of a file in the same folder, on any operating system."""
    return (
        bool(name)
        and name not in {".", ".."}
        and PurePosixPath(name).name == name
        and PureWindowsPath(name).name == name
        and "\0" not in name
    )


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        BundleError: the file is missing, empty or no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files that only their owner can read; the result is an ordinary file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
