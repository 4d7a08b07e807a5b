"""Recordings read from WAV files, as far as the standard library reads them."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.errors import ClipError

#: Longer recordings are not clips; whoever means one has named the wrong file.
_LONGEST_SECONDS: Final = 600
_HINT: Final = "`ffmpeg -i in.wav -ar 16000 -ac 1 -c:a pcm_s16le out.wav` makes one that is"

#: numpy's type of a sample by its width in bytes, what stands for silence, and full scale.
_FORMATS: Final[dict[int, tuple[str, int, float]]] = {
    1: ("u1", 128, 128.0),
    2: ("<i2", 0, 2.0**15),
    4: ("<i4", 0, 2.0**31),
}


def read_clip(path: Path) -> tuple[NDArray[np.float32], int]:
    """Read a recording; its channels are mixed into one.

    Returns:
        Samples float32 [T] within -1 to 1, and their rate in hertz.

    Raises:
        ClipError: the file is missing, no WAV of integers, or much too long.
    """
    try:
        with wave.open(str(path)) as clip:
            rate, channels, width = clip.getframerate(), clip.getnchannels(), clip.getsampwidth()
            if clip.getnframes() > _LONGEST_SECONDS * rate:
                raise ClipError(path, "is longer than ten minutes; a clip has some seconds")
            content = clip.readframes(clip.getnframes())
    except (wave.Error, EOFError, ZeroDivisionError) as error:
        raise ClipError(path, f"is no WAV that can be read: {error}", hint=_HINT) from error
    except OSError as error:
        raise ClipError(path, f"cannot be read: {error}") from error
    frame = width * channels
    samples = _numbers(content[: len(content) // frame * frame], width)
    return samples.reshape(-1, channels).mean(axis=1, dtype=np.float64).astype(np.float32), rate


def _numbers(content: bytes, width: int) -> NDArray[np.float32]:
    if width == 3:  # numpy has no such type: as the upper bytes of four
        wide = np.zeros((len(content) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        content, width = wide.tobytes(), 4
    kind, silence, full = _FORMATS[width]
    numbers: NDArray[Any] = np.frombuffer(content, kind).astype(np.float64)
    return ((numbers - silence) / full).astype(np.float32)
