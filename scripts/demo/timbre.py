"""How close a codec's timbre is to the teacher's: figures for what one hears as a buzz.

    python -m scripts.demo.timbre --work work/ codec.pt polished.pt

Every codec speaks the teacher's own sound of the held-out sentences, so frames can be compared one
to one. Voiced frames and their pitch are found in the teacher's sound and used for all. Per system:

- ``distance``: log-spectral distance to the teacher, dB: RMS over 512-point spectra of 32 ms,
  floored 80 dB below full scale, of frames within 40 dB of the loudest.
- ``level``: dB against the teacher over the same frames.
- ``harmonics``: harmonics-to-noise ratio of voiced frames, dB, from the autocorrelation at the
  pitch's lag (Boersma's estimate, 48 ms).
- ``flatness``: per band in voiced frames, geometric over arithmetic mean of the power spectrum in
  dB; 0 is noise, the lower the more tonal.
- ``pulse``: per band in voiced frames, how much of the band's envelope repeats with the pitch,
  0 to 1. Speech gets noisy at the top; a vocoder that buzzes or rattles is off there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.demo.evaluate import read_set, teacher_and_codec
from scripts.demo.text import HELD_OUT

Sound = NDArray[np.float32]
Frames = NDArray[np.floating[Any]]
RATE = 16000
HOP, SHORT, LONG = 160, 512, 768
LAGS = (RATE // 400, RATE // 70)
VOICED = 0.7
"""Autocorrelation at the pitch's lag from which on a frame of the teacher is voiced."""
BANDS = ((0, 1000), (1000, 2000), (2000, 4000), (4000, 8000))


def frames_of(sound: Sound, size: int) -> Frames:
    """Frames [n, size] with a common centre whatever their size."""
    padded = np.pad(sound.astype(np.float64), (size // 2, size // 2))
    return np.lib.stride_tricks.sliding_window_view(padded, size)[::HOP][: len(sound) // HOP]


def autocorrelation(frames: Frames) -> Frames:
    """Normalized, that of the window divided out [n, size]; lag 0 is 1."""
    window = np.hanning(frames.shape[1])
    centred = (frames - frames.mean(1, keepdims=True)) * window

    def raw(x: Frames) -> Frames:
        power = np.abs(np.fft.rfft(x, 2 * frames.shape[1])) ** 2
        return np.fft.irfft(power)[..., : frames.shape[1]]

    found, base = raw(centred), raw(window)
    ratio = found / (found[:, :1] + 1e-9)
    return ratio / np.maximum(base / base[0], 1e-3)


def pitch(sound: Sound) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Lag of the strongest period of every frame, and which frames are voiced."""
    part = autocorrelation(frames_of(sound, LONG))[:, LAGS[0] : LAGS[1]]
    lags = part.argmax(1) + LAGS[0]
    return lags, (part.max(1) > VOICED) & active(sound)


def active(sound: Sound) -> NDArray[np.bool_]:
    """Frames within 40 dB of the loudest."""
    power = (frames_of(sound, SHORT) ** 2).mean(1)
    return power > power.max() * 1e-4


def at_lag(frames: Frames, lags: NDArray[np.intp]) -> Frames:
    """The autocorrelation near the given lags [n]."""
    found = autocorrelation(frames)
    near = np.stack([found[np.arange(len(lags)), lags + d] for d in (-2, -1, 0, 1, 2)])
    return near.max(0).clip(1e-3, 1 - 1e-3)


def band(sound: Sound, low: int, high: int) -> Sound:
    """The part of the sound between two frequencies."""
    spectrum = np.fft.rfft(sound.astype(np.float64))
    frequency = np.fft.rfftfreq(len(sound), 1 / RATE)
    spectrum[(frequency < low) | (frequency >= high)] = 0
    return np.fft.irfft(spectrum, len(sound)).astype(np.float32)


def envelope(sound: Sound) -> Sound:
    """Magnitude of the analytic signal."""
    spectrum = np.fft.fft(sound)
    spectrum[1 : len(sound) // 2] *= 2
    spectrum[len(sound) // 2 + 1 :] = 0
    return np.abs(np.fft.ifft(spectrum)).astype(np.float32)


def measure(teacher: Sound, sound: Sound) -> dict[str, list[float]]:
    """All figures of one sentence, as lists over frames (``flatness`` and ``pulse`` by band)."""
    lags, voiced = pitch(teacher)
    heard = active(teacher)
    window = np.hanning(SHORT)
    scale = 4 / SHORT  # a full-scale sine is 1

    def powers(x: Sound) -> Frames:
        return np.abs(np.fft.rfft(frames_of(x, SHORT) * window)) ** 2 * scale**2 + 1e-8

    there, here = powers(teacher), powers(sound)
    gap = 10 * np.log10(here[heard] / there[heard])
    results = {
        "distance": np.sqrt((gap**2).mean(1)).tolist(),
        "power": (frames_of(sound, SHORT) ** 2).mean(1)[heard].tolist(),
    }
    periodic = at_lag(frames_of(sound, LONG)[voiced], lags[voiced])
    results["harmonics"] = (10 * np.log10(periodic / (1 - periodic))).tolist()
    for low, high in BANDS:
        bins = slice(low * SHORT // RATE, high * SHORT // RATE)
        part = here[voiced, bins]
        flat = np.log(part).mean(1) - np.log(part.mean(1))
        results[f"flatness {low}"] = (10 / np.log(10) * flat).tolist()
        shape = frames_of(envelope(band(sound, low, high)), LONG)[voiced]
        results[f"pulse {low}"] = at_lag(shape, lags[voiced]).tolist()
    return results


def table(work: Path, codecs: list[Path], texts: list[str]) -> dict[str, dict[str, Any]]:
    """Means over all sentences, of the teacher and every codec."""
    speakers = {"teacher": teacher_and_codec(work, None)[0]}
    speakers |= {str(path): teacher_and_codec(work, path)[1] for path in codecs}
    sums: dict[str, dict[str, list[float]]] = {name: {} for name in speakers}
    for index, text in enumerate(texts):
        original = speakers["teacher"](text, index)[0]
        for name, speak in speakers.items():
            for key, values in measure(original, speak(text, index)[0]).items():
                sums[name].setdefault(key, []).extend(values)
    means = {n: {k: float(np.mean(v)) for k, v in each.items()} for n, each in sums.items()}
    lines = {}
    for name, mean in means.items():
        level = 10 * np.log10(mean["power"] / means["teacher"]["power"])
        lines[name] = {
            "distance": round(mean["distance"], 2),
            "level": round(float(level), 2),
            "harmonics": round(mean["harmonics"], 2),
            "flatness": [round(mean[f"flatness {low}"], 2) for low, _ in BANDS],
            "pulse": [round(mean[f"pulse {low}"], 3) for low, _ in BANDS],
        }
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the teacher's graph")
    parser.add_argument("codecs", type=Path, nargs="+")
    parser.add_argument("--sentences", type=Path, default=HELD_OUT)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    texts = read_set(arguments.sentences)[: arguments.limit]
    for name, line in table(arguments.work, arguments.codecs, texts).items():
        print(json.dumps({"name": name, **line}), flush=True)


if __name__ == "__main__":
    main()
