"""16-bit mono sound written as it comes: a WAV or bare samples, to a file or down a pipe."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from phoonnx_llasa.files import atomic_writer

#: What both length fields of a WAV hold while nobody knows the length. Players take it as "until
#: the stream ends" (ffmpeg, SoX and aplay do); it is what ffmpeg itself writes into a pipe.
UNKNOWN_LENGTH: Final = 0xFFFF_FFFF

_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")
_SAMPLE_BYTES: Final = 2
#: Header bytes that the RIFF length counts: all but "RIFF" and the length itself.
_COUNTED: Final = _HEADER.size - 8
_LONGEST: Final = (UNKNOWN_LENGTH - 1 - _COUNTED) // _SAMPLE_BYTES * _SAMPLE_BYTES


def wav_header(sample_rate: int, num_bytes: int | None) -> bytes:
    """The 44 bytes before the samples of a 16-bit mono WAV.

    Args:
        sample_rate: hertz.
        num_bytes: bytes of samples that follow; None where that is not known yet, and where it is
            more than the format's 32 bits can say.
    """
    known = num_bytes is not None and num_bytes <= _LONGEST
    length = num_bytes if num_bytes is not None and known else UNKNOWN_LENGTH
    return _HEADER.pack(
        b"RIFF",
        length + _COUNTED if known else UNKNOWN_LENGTH,
        b"WAVE",
        b"fmt ",
        16,  # bytes of the format's description
        1,  # PCM
        1,  # channel
        sample_rate,
        sample_rate * _SAMPLE_BYTES,
        _SAMPLE_BYTES,
        8 * _SAMPLE_BYTES,
        b"data",
        length,
    )


@contextmanager
def destination(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for sound. It gets its name when it is whole; until then nothing is seen of it.

    A device or a named pipe is written to, and a link's target replaced, not the link.

    Raises:
        OSError: the path cannot be written to.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
    else:
        try:
            target = path.resolve()
        except RuntimeError as error:  # Python 3.11 and 3.12 say so of links that go in a circle
            raise OSError(f"{path}: {error}") from error
        with atomic_writer(target) as stream:
            yield stream


class SoundWriter:
    """Writes blocks of samples to an open binary stream, each at once, so that it can be played.

    The WAV header goes first with an unknown length; :meth:`finish` puts the true one in where the
    stream is a file, which is also so for ``> out.wav`` in a shell.
    """

    def __init__(self, stream: IO[bytes], sample_rate: int, *, raw: bool = False) -> None:
        """Begin the sound.

        Args:
            stream: an open binary stream. It stays the caller's, who closes it.
            sample_rate: hertz.
            raw: no header, only the samples (signed 16-bit little-endian).
        """
        self._stream = stream
        self._sample_rate = sample_rate
        self._num_bytes = 0
        self._header_at = None if raw else _patchable_position(stream)
        if not raw:
            self._put(wav_header(sample_rate, None))

    def write(self, samples: bytes) -> None:
        """Write samples, signed 16-bit little-endian.

        Raises:
            OSError: the stream does not take them: BrokenPipeError where its reader has gone.
        """
        self._put(samples)
        self._num_bytes += len(samples)

    def finish(self) -> None:
        """Put the true length into the header, where the stream lets one go back to it."""
        if self._header_at is None:
            return
        end = self._stream.tell()
        self._stream.seek(self._header_at)
        self._put(wav_header(self._sample_rate, self._num_bytes))
        self._stream.seek(end)

    def _put(self, content: bytes) -> None:
        self._stream.write(content)
        self._stream.flush()


def _patchable_position(stream: IO[bytes]) -> int | None:
    """Where a stream stands, or None if what is written there cannot be changed later."""
    try:
        if not stream.seekable() or _appends(stream):
            return None
        return stream.tell()
    except OSError:
        # a terminal or a device may call itself seekable and then refuse
        return None


def _appends(stream: IO[bytes]) -> bool:
    """Whether every write goes to the end of the file, wherever one seeks (``>> out.wav``)."""
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        return False
    try:
        import fcntl
    except ImportError:  # Windows has no such mode on a handle
        return False
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)
