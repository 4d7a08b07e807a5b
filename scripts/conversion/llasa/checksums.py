"""SHA256SUMS of a folder, in the format of `sha256sum --check`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SUMS: Final = "SHA256SUMS"


def files_of(folder: Path) -> dict[str, Path]:
    """Every file below a folder but the list itself, by its name in the list."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {name: path for path in paths if (name := path.relative_to(folder).as_posix()) != SUMS}


def write_sums(folder: Path) -> None:
    """Write the list of a folder."""
    lines = [f"{_digest(path)}  {name}\n" for name, path in files_of(folder).items()]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path) -> list[str]:
    """What is not as the list says, in words; empty if all is well."""
    path = folder / SUMS
    if not path.is_file():
        return [f"there is no {SUMS}"]
    listed = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            return [f"{SUMS}, line {number}: is not a checksum and a name"]
        listed[name] = digest
    there = files_of(folder)
    return [
        *(f"{name}: is missing" for name in listed if name not in there),
        *(f"{name}: is not in the list" for name in there if name not in listed),
        *(
            f"{name}: was changed"
            for name, file in there.items()
            if name in listed and _digest(file) != listed[name]
        ),
    ]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
