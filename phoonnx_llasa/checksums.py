"""SHA256SUMS: a list of files and what is in them, as `sha256sum --check` reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from phoonnx_llasa.errors import BundleError

SUMS_FILE: Final = "SHA256SUMS"

_DIGEST_LENGTH: Final = 64


def read_sums(path: Path) -> dict[str, str]:
    """Name -> SHA-256 in hexadecimal digits.

    Raises:
        BundleError: the file cannot be read, or is no such list.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(path, f"cannot be read: {error}") from error
    listed = {}
    for number, line in enumerate(lines, 1):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != _DIGEST_LENGTH:
            raise BundleError(path, f"line {number} is not a checksum and a name")
        listed[name] = digest
    return listed


def file_sum(path: Path) -> str:
    """A file's SHA-256 in hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def changed_files(paths: Iterable[Path], sums: Path) -> list[Path]:
    """Those of some files in a list's folder that are not as the list says.

    A file that the list does not name counts as unchanged: nothing is known of it.

    Raises:
        BundleError: the list or a file cannot be read.
    """
    listed = read_sums(sums)
    changed = []
    for path in paths:
        try:
            if path.name in listed and file_sum(path) != listed[path.name]:
                changed.append(path)
        except OSError as error:
            raise BundleError(path, f"cannot be read: {error}") from error
    return changed
