"""Where the text comes from: arguments, files, standard input as it is written, JSON lines."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

from phoonnx_llasa.commands.common import STANDARD_STREAM
from phoonnx_llasa.commands.names import stem_of
from phoonnx_llasa.errors import InputError
from phoonnx_llasa.files import is_text

#: Bytes of text that are spoken as one part where a file is long: some 20 pages, well below what
#: one call takes.
_PART_BYTES: Final = 1 << 16
#: Bytes of one line. A text of the greatest length that a call takes, written as JSON, is shorter.
_LINE_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 16
#: Seconds in which the next line still belongs to the text before it: programs write a page at
#: once, people and logs do not.
_TOGETHER: Final = 0.2
#: Seconds after which whole lines are spoken, though more keep coming.
_LONGEST_WAIT: Final = 1.0

_STDIN: Final = "standard input"


@dataclass(frozen=True, slots=True)
class Request:
    """One sound to make."""

    place: str
    """Where it stands, for messages."""
    parts: Iterable[str]
    """The text; a part is read when all before it are spoken."""
    title: str | None = None
    """What a file of it is named after; None for its first words."""
    output: str | None = None
    """The name of its file, where it has been given one."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """On top of those of the command line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or standard input."""

    path: str

    @property
    def name(self) -> str:
        """What messages call it."""
        return _STDIN if self.path == STANDARD_STREAM else self.path

    @property
    def title(self) -> str | None:
        """What a sound of all of it is named after."""
        return None if self.path == STANDARD_STREAM else stem_of(Path(self.path))

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open it for reading.

        Raises:
            InputError: it cannot be read.
        """
        if self.path == STANDARD_STREAM:
            if sys.stdin is None:
                raise InputError(_STDIN, "is closed")
            yield sys.stdin.buffer
            return
        try:
            stream = Path(self.path).open("rb")  # noqa: SIM115
        except OSError as error:
            raise InputError(self.path, f"cannot be read: {error.strerror or error}") from error
        with stream:
            yield stream


def read_words(words: Iterable[str], *, by_line: bool) -> list[Request]:
    """The text of the command line itself."""
    text = " ".join(words)
    if not by_line:
        return [Request("the text", [text])]
    lines = enumerate(text.splitlines(), 1)
    return [Request(f"the text, line {number}", [line]) for number, line in lines if line.strip()]


def read_whole(sources: Sequence[Source], *, wait: bool) -> Request:
    """All of some sources as one sound.

    Args:
        wait: read each to its end first. Otherwise what a program or a person writes is spoken as
            it comes: up to the last whole line, whenever the speaker is ready for more.
    """
    parts = chain.from_iterable(_decoded(source, wait=wait) for source in sources)
    return Request(sources[0].name, parts, sources[0].title)


def read_lines(source: Source) -> Iterator[Request | InputError]:
    """Each line as a sound of its own, as soon as it is whole; blank ones are left out."""
    for place, line in _lines(source):
        if isinstance(line, InputError):
            yield line
        elif line.strip():
            yield Request(place, [line])


def read_json_lines(source: Source) -> Iterator[Request | InputError]:
    """Each line as an object: `text`, `output`, and extra parameters by their names."""
    from phoonnx_llasa.options import PARAMETERS

    allowed = frozenset(PARAMETERS)
    for place, line in _lines(source):
        if isinstance(line, InputError):
            yield line
        elif line.strip():
            try:
                yield _json_request(place, line, allowed)
            except InputError as error:
                yield error


def _json_request(place: str, line: str, allowed: frozenset[str]) -> Request:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(place, f"is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(place, 'is not a JSON object like {"text": "Hello."}')
    text, output = data.pop("text", None), data.pop("output", None)
    if not isinstance(text, str) or not is_text(text):
        raise InputError(place, 'lacks "text", a string')
    if output is not None and not (isinstance(output, str) and output):
        raise InputError(place, '"output" is not the name of a file')
    if unknown := sorted(set(data) - allowed):
        known = ", ".join(["text", "output", *sorted(allowed)])
        raise InputError(place, f"has {unknown[0]!r}; a line may have: {known}")
    return Request(place, [text], output=output, params=data)


def _lines(source: Source) -> Iterator[tuple[str, str | InputError]]:
    try:
        with source.open() as stream:
            yield from _lines_of(stream, source.name)
    except InputError as error:
        yield source.name, error


def _lines_of(stream: IO[bytes], name: str) -> Iterator[tuple[str, str | InputError]]:
    number = 0
    while line := stream.readline(_LINE_BYTES):
        number += 1
        place = f"{name}, line {number}"
        if len(line) == _LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield place, InputError(place, f"is longer than {_LINE_BYTES} bytes")
            continue
        try:
            yield place, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield place, InputError(place, f"is not UTF-8 text: {error}")


def _decoded(source: Source, *, wait: bool) -> Iterator[str]:
    encoding = "utf-8-sig"
    with source.open() as stream:
        for part in _parts(stream, source.name, wait=wait):
            try:
                text = part.decode(encoding)
            except UnicodeDecodeError as error:
                raise InputError(source.name, f"is not UTF-8 text: {error}") from error
            encoding = "utf-8"
            yield text


def _parts(stream: IO[bytes], name: str, *, wait: bool) -> Iterator[bytes]:
    """The bytes of a stream in parts that end with a line, or with the stream."""
    descriptor = None if wait else _live_descriptor(stream)
    waiting = b""
    deadline = 0.0
    while True:
        if b"\n" in waiting and (
            len(waiting) >= _PART_BYTES
            or (descriptor is not None and not _more_comes(descriptor, deadline))
        ):
            end = _end_of_part(waiting)
            yield waiting[:end]
            waiting = waiting[end:]
            continue
        chunk = (
            stream.read(_CHUNK_BYTES) if descriptor is None else os.read(descriptor, _CHUNK_BYTES)
        )
        if not chunk:
            break
        if b"\n" not in waiting:
            deadline = time.monotonic() + _LONGEST_WAIT
        waiting += chunk
        if len(waiting) > _LINE_BYTES and b"\n" not in waiting:
            raise InputError(name, f"has a line of more than {_LINE_BYTES} bytes")
    if waiting:
        yield waiting


def _end_of_part(text: bytes) -> int:
    """Where to part a text: behind a blank line where it is long, else behind the last line."""
    if len(text) >= _PART_BYTES:
        for blank in (b"\n\n", b"\n\r\n"):
            if (found := text.rfind(blank)) >= 0:
                return found + len(blank)
    return text.rfind(b"\n") + 1


def _live_descriptor(stream: IO[bytes]) -> int | None:
    """The descriptor of a pipe or a terminal.

    None for a file of the disk, which is all there: how its text is parted must not depend on how
    fast it is read.
    """
    try:
        descriptor = stream.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (OSError, io.UnsupportedOperation):
        return None


def _more_comes(descriptor: int, deadline: float) -> bool:
    """Whether more of what is being written comes soon enough to be spoken with it."""
    if time.monotonic() >= deadline:
        return False
    try:
        return bool(select.select([descriptor], [], [], _TOGETHER)[0])
    except OSError:  # Windows can tell of sockets only: each line by itself then
        return False
