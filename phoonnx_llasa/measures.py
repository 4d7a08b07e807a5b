"""What can be told of a spoken sentence without hearing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.text import spoken_weight

Sound = NDArray[np.float32]

_FRAME_SECONDS: Final = 0.02
#: Below this, relative to the loud parts, a frame is a pause (speech's own dips end at -35 dB).
_PAUSE_DB: Final = -40.0
#: The loud parts: this share of the frames lies below.
_LOUD_PERCENTILE: Final = 90.0
#: Share of full scale from where a sample counts as clipped, and of what is left at the end.
_CLIPPED: Final = 0.99
_ENDING_SECONDS: Final = 0.06
#: Voices: the lowest men's and the highest women's and children's.
_LOWEST_PITCH, _HIGHEST_PITCH = 60.0, 400.0
_PITCH_WINDOW: Final = 0.04
#: Peak of the normalized autocorrelation from which a window is taken for voiced.
_VOICED: Final = 0.6


@dataclass(frozen=True, slots=True)
class Measures:
    """Figures of one clip."""

    seconds: float
    clipped: float
    """Share of the samples at full scale."""
    longest_silence: float
    """Seconds, the ends included."""
    rate: float
    """Spoken weight (about: letters) a second, pauses at both ends left out."""
    ending_db: float
    """Level of the last 60 ms against the loud parts: speech that was cut off has no fall."""
    pitch: float
    """Median of the voiced parts in hertz; 0 where nothing is voiced."""


def measure(samples: Sound, sample_rate: int, text: str) -> Measures:
    """Measure a clip that says `text`."""
    levels = frame_levels(samples, sample_rate)
    loud = float(np.percentile(levels, _LOUD_PERCENTILE)) if levels.size else 0.0
    heard = levels > loud * 10 ** (_PAUSE_DB / 20)
    where = np.flatnonzero(heard)
    spoken = int(where[-1] + 1 - where[0]) * _FRAME_SECONDS if where.size else 0.0
    ending = samples[-round(_ENDING_SECONDS * sample_rate) :]
    level = float(np.sqrt(np.mean(np.square(ending, dtype=np.float64)))) if ending.size else 0.0
    return Measures(
        seconds=len(samples) / sample_rate,
        clipped=float(np.mean(np.abs(samples) >= _CLIPPED)) if samples.size else 0.0,
        longest_silence=_longest_run(~heard) * _FRAME_SECONDS,
        rate=spoken_weight(text) / spoken if spoken else 0.0,
        ending_db=20 * float(np.log10(max(level, 1e-9) / max(loud, 1e-9))),
        pitch=pitch(samples, sample_rate),
    )


def frame_levels(samples: Sound, sample_rate: int) -> NDArray[np.float64]:
    """RMS of each whole frame of 20 ms."""
    size = round(_FRAME_SECONDS * sample_rate)
    frames = samples[: len(samples) // size * size].astype(np.float64).reshape(-1, size)
    levels: NDArray[np.float64] = np.sqrt(np.mean(np.square(frames), axis=1))
    return levels


def pitch(samples: Sound, sample_rate: int) -> float:
    """Median fundamental frequency of the voiced windows in hertz; 0 if there are none.

    By the highest peak of each window's autocorrelation, which is enough to tell a low voice from
    a high one.
    """
    size = round(_PITCH_WINDOW * sample_rate)
    shortest, longest = int(sample_rate / _HIGHEST_PITCH), int(sample_rate / _LOWEST_PITCH)
    floor = 0.1 * float(np.abs(samples).max(initial=0.0))
    found = []
    for start in range(0, len(samples) - size - longest, size // 2):
        window = samples[start : start + size + longest].astype(np.float64)
        head = window[:size]
        if np.abs(head).max() <= floor:
            continue
        products = np.correlate(window, head, "valid")
        powers = np.convolve(np.square(window), np.ones(size), "valid")
        similarity = products / np.sqrt(np.maximum(powers * powers[0], 1e-20))
        region = similarity[shortest : longest + 1]
        # The first peak that is nearly the best: twice the period is as similar.
        near = np.flatnonzero(region >= 0.9 * region.max())
        best = near[0]
        while best + 1 < len(region) and region[best + 1] > region[best]:
            best += 1
        if region[best] >= _VOICED:
            found.append(sample_rate / (best + shortest))
    return float(np.median(found)) if found else 0.0


def _longest_run(flags: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))
