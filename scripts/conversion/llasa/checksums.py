"""SHA256SUMS of a folder: written, and held against everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from phoonnx_llasa.checksums import SUMS_FILE, file_sum, read_sums
from phoonnx_llasa.errors import BundleError

SUMS: Final = SUMS_FILE


def files_of(folder: Path) -> dict[str, Path]:
    """Every file below a folder but the list itself, by its name in the list."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {name: path for path in paths if (name := path.relative_to(folder).as_posix()) != SUMS}


def write_sums(folder: Path) -> None:
    """Write the list of a folder."""
    lines = [f"{file_sum(path)}  {name}\n" for name, path in files_of(folder).items()]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path) -> list[str]:
    """What is not as the list says, in words; empty if all is well."""
    path = folder / SUMS
    if not path.is_file():
        return [f"there is no {SUMS}"]
    try:
        listed = read_sums(path)
    except BundleError as error:
        return [str(error)]
    there = files_of(folder)
    return [
        *(f"{name}: is missing" for name in listed if name not in there),
        *(f"{name}: is not in the list" for name in there if name not in listed),
        *(
            f"{name}: was changed"
            for name, file in there.items()
            if name in listed and file_sum(file) != listed[name]
        ),
    ]
