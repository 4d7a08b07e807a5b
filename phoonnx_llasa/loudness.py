"""One level for a whole call.

The host normalizes each chunk by its peak, which needs the chunk to be complete. While streaming,
the gain comes from the preset's own sound instead, and a limiter takes what goes over.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Amplitude that this share of a recording's samples stays below. From sentence to sentence of one
#: voice it varies by 0.5 dB, the peak by 1.4 dB (demo voice, benchmarks/bench_codec.py).
_PERCENTILE: Final = 99.5
#: A clip's peak over that amplitude: 4.2 dB in the same measurement.
_PEAK_FACTOR: Final = 1.6
#: A preset further from full range than this (26 dB) is broken or nearly silent.
_GAIN_RANGE: Final = (0.1, 20.0)
#: Below this peak the host takes a chunk for silence (TTSVoice.synthesize).
_SILENCE_PEAK: Final = 1e-8
#: The limiter leaves everything up to here (-1.9 dB) untouched.
_KNEE: Final = 0.8


def preset_gain(samples: NDArray[np.float32]) -> float:
    """The gain that brings the speaker of a recording to full range.

    Where the host would divide by the highest sample, a single one weighs little here: neighbouring
    sentences shall come out equally loud.

    Args:
        samples: the preset's sound, float32 [N].

    Returns:
        0.1 to 20; 1.0 for silence or nothing.
    """
    magnitudes = np.abs(samples)
    peak = float(magnitudes.max(initial=0.0))
    if not np.isfinite(peak) or peak < _SILENCE_PEAK:
        return 1.0
    usual = _PEAK_FACTOR * float(np.percentile(magnitudes, _PERCENTILE))
    lowest, highest = _GAIN_RANGE
    return float(np.clip(1 / max(min(peak, usual), _SILENCE_PEAK), lowest, highest))


def apply_gain(samples: NDArray[np.float32], gain: float) -> NDArray[np.float32]:
    """Multiply, and bend what goes over 0.8 smoothly below 1.0.

    Works sample by sample without memory, so cutting a sound into blocks changes nothing.

    Args:
        samples: float32 [N], left as they are.
        gain: the factor.

    Returns:
        float32 [N] within -1.0 to 1.0.
    """
    scaled = samples * np.float32(gain)
    magnitudes = np.abs(scaled)
    over = magnitudes > _KNEE
    if over.any():
        room = np.float32(1 - _KNEE)
        bent = _KNEE + room * np.tanh((magnitudes[over] - _KNEE) / room)
        scaled[over] = np.copysign(np.minimum(bent, 1.0), scaled[over])
    return scaled


def normalize_peak(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The host's own rule for a complete chunk: its highest sample to 1.0, silence to zeros.

    Args:
        samples: float32 [N], left as they are.
    """
    peak = float(np.abs(samples).max(initial=0.0))
    if peak < _SILENCE_PEAK:
        return np.zeros_like(samples)
    return samples / np.float32(peak)
