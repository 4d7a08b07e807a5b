"""Names of sound files: made from what they say, or asked for, and never outside of the folder."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Final

from phoonnx_llasa.errors import InputError
from phoonnx_llasa.files import is_plain_name

#: Characters, and bytes, of a name made from a text. Enough to know it by.
_LONGEST: Final = 50
_MOST_BYTES: Final = 150
#: Where a text has nothing to make a name of.
_NAMELESS: Final = "speech"
#: Names that Windows keeps for devices, whatever stands behind a dot.
_DEVICES: Final = frozenset(
    ("con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(10)))
)


def slug(text: str) -> str:
    """A text's first words as a file name without suffix: letters and digits of any script, `-`.

    Lower case, so that two names do not differ in case only; no dot, so that nothing is hidden.
    """
    folded = unicodedata.normalize("NFKC", text[: 20 * _LONGEST]).lower()
    kept = "".join(c if _is_word_character(c) else " " for c in folded)
    name = ""
    for word in kept.split():
        longer = f"{name}-{word}" if name else word
        if len(longer) > _LONGEST or len(longer.encode()) > _MOST_BYTES:
            break
        name = longer
    else:
        return _no_device(name or _NAMELESS)
    return _no_device(name or _cut("".join(kept.split())))


def _is_word_character(character: str) -> bool:
    # marks belong to the letter before them: vowels in Thai or Hindi
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def _cut(word: str) -> str:
    """The beginning of one long word; Chinese has no spaces."""
    word = word[:_LONGEST]
    while len(word.encode()) > _MOST_BYTES:
        word = word[:-1]
    return word


def _no_device(name: str) -> str:
    return f"{_NAMELESS}-{name}" if name in _DEVICES else name


def stem_of(path: Path) -> str:
    """What a sound of a text file is named after: the file's own name, where it is a plain one."""
    stem = path.stem
    is_usable = stem.isprintable() and not stem.startswith(".") and is_plain_name(f"{stem}.wav")
    return stem if is_usable else slug(stem)


class FileNames:
    """Names in one folder. No two of a run are the same, not even in letter case.

    A name that is made up goes around files that are there already; one that was asked for does
    not replace them unless that is wanted.
    """

    def __init__(self, folder: Path, suffix: str, *, force: bool) -> None:
        """Begin a run.

        Args:
            folder: where the files go.
            suffix: what their names end with, with the dot.
            force: files that are there already may be replaced.
        """
        self._folder = folder
        self._suffix = suffix
        self._force = force
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}

    def made_up(self, stem: str) -> Path:
        """A free name: the stem, or the stem and a number from 2."""
        while True:
            number = self._numbers[stem] = self._numbers.get(stem, 0) + 1
            name = f"{stem}{'' if number == 1 else f'-{number}'}{self._suffix}"
            path = self._folder / name
            if name.casefold() not in self._used and self._is_free(path):
                self._used.add(name.casefold())
                return path

    def asked_for(self, name: str, place: str) -> Path:
        """The name that somebody wants; the suffix is added where it lacks.

        Args:
            place: where it is wanted, for messages.

        Raises:
            InputError: it is no name of a file in the folder, or it is taken.
        """
        if not name.lower().endswith(self._suffix):
            name += self._suffix
        if name.startswith(".") or not name.isprintable() or not is_plain_name(name):
            raise InputError(place, f"output {name!r} is not a plain, visible file name")
        path = self._folder / name
        if name.casefold() in self._used:
            raise InputError(place, f"output {name!r} is another sound's of this run already")
        if not self._is_free(path):
            hint = "is a folder" if path.is_dir() else "exists; --force replaces it"
            raise InputError(place, f"{path} {hint}")
        self._used.add(name.casefold())
        return path

    def _is_free(self, path: Path) -> bool:
        """Whether a file may take this name: no folder is ever replaced."""
        if not os.path.lexists(path):
            return True
        return self._force and (path.is_symlink() or not path.is_dir())
