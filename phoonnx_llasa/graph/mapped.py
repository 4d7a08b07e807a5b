"""A graph whose weights stay in its own file: nothing of them is read before it is used.

A model with its weights inside of it is read whole, and then copied, by onnxruntime. ONNX also
knows weights in another file, which are mapped into memory, and nothing keeps that file from being
the model itself: so the graph is put together anew without its weights, each of which refers to the
place in the file where its bytes lie. Only the few fields on the way there are understood; all
others are copied as they are (protobuf's wire format, onnx.proto3).
"""

from __future__ import annotations

import mmap
import platform
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phoonnx_llasa.errors import GraphError

#: Smaller weights stay in the graph.
_SMALLEST: Final = 1024

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 7, 5, 9, 13, 14
_KEY, _VALUE, _EXTERNAL = 1, 2, 1


@dataclass(frozen=True, slots=True)
class MappedGraph:
    """A graph in memory whose weights lie in a file."""

    model: bytes
    folder: Path
    """Where onnxruntime looks for the file that the weights refer to."""


def can_map() -> bool:
    """Whether this processor reads numbers from any address, as they lie in such a file."""
    return platform.machine().lower() in {"x86_64", "amd64"}


def map_weights(path: Path) -> MappedGraph:
    """Put a graph together anew around the weights inside of its own file.

    Raises:
        GraphError: the file is no ONNX graph, or cannot be read.
    """
    real = path.resolve()  # onnxruntime follows no links out of the folder
    try:
        with (
            real.open("rb") as stream,
            closing(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)) as content,
        ):
            model = _Rewriter(content, real.name).model()
    except (OSError, ValueError, IndexError) as error:
        raise GraphError(path, f"is not a readable ONNX graph: {error}") from error
    return MappedGraph(model, real.parent)


class _Rewriter:
    def __init__(self, content: mmap.mmap, file_name: str) -> None:
        self._content = content
        self._file_name = file_name.encode()

    def model(self) -> bytes:
        return self._rewrite(0, len(self._content), {_GRAPH: self._graph})

    def _graph(self, start: int, stop: int) -> bytes:
        return _field(_GRAPH, self._rewrite(start, stop, {_INITIALIZER: self._initializer}))

    def _initializer(self, start: int, stop: int) -> bytes:
        places: list[tuple[int, int]] = []

        def raw_data(first: int, last: int) -> bytes:
            if last - first < _SMALLEST:
                return _field(_RAW_DATA, self._content[first:last])
            places.append((first, last - first))
            return b""

        tensor = self._rewrite(start, stop, {_RAW_DATA: raw_data})
        for offset, length in places:
            tensor += _entry(b"location", self._file_name)
            tensor += _entry(b"offset", str(offset).encode())
            tensor += _entry(b"length", str(length).encode())
            tensor += _varint(_DATA_LOCATION << 3 | _VARINT) + _varint(_EXTERNAL)
        return _field(_INITIALIZER, tensor)

    def _rewrite(
        self, start: int, stop: int, changes: dict[int, Callable[[int, int], bytes]]
    ) -> bytes:
        """A message with some of its length-delimited fields changed."""
        parts: list[bytes] = []
        for number, whole, (first, last) in self._fields(start, stop):
            change = changes.get(number)
            parts.append(self._content[whole:last] if change is None else change(first, last))
        return b"".join(parts)

    def _fields(self, start: int, stop: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Number, begin and the extent of what each field of a message holds."""
        place = start
        while place < stop:
            whole = place
            tag, place = self._read_varint(place)
            kind = tag & 7
            if kind == _BYTES:
                length, place = self._read_varint(place)
                extent = (place, place + length)
            elif kind == _VARINT:
                extent = (place, self._read_varint(place)[1])
            elif kind in (_FIXED32, _FIXED64):
                extent = (place, place + (4 if kind == _FIXED32 else 8))
            else:
                raise ValueError(f"a field of kind {kind} at byte {whole}")
            place = extent[1]
            if place > stop:
                raise ValueError(f"a field at byte {whole} is longer than what holds it")
            yield tag >> 3 if kind == _BYTES else -1, whole, extent

    def _read_varint(self, place: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self._content[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, place
            shift += 7
            if shift > 63:
                raise ValueError(f"a number at byte {place} has no end")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _entry(key: bytes, value: bytes) -> bytes:
    return _field(_EXTERNAL_DATA, _field(_KEY, key) + _field(_VALUE, value))
