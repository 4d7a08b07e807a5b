"""Streamed against one-go decoding, as a function of the windows; and the loudness of a voice.

    python -m benchmarks.bench_codec [--bundle FOLDER] [--codes FILE] [--quick]

Sentences are spoken by the bundle itself (the built-in one unless told), or read as codes from
a JSON file, a list of lists. Each is decoded in one go and as a stream, with the codes of another
sentence as context, and compared. Prints the tables of docs/streaming.md, in Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.codec import Codec, StreamSettings, decode_stream, decode_whole, open_codec
from phoonnx_llasa.loudness import preset_gain

DEMO = Path(__file__).parents[1] / "phoonnx_llasa" / "demo"
SENTENCES = (
    "The train to the city leaves in ten minutes.",
    "We walked along the river until the sun went down.",
    "Please close the window before you leave the house.",
    "She told me that the weather would be fine tomorrow.",
    "The children played in the garden all afternoon.",
    "He put the letter on the table and went away.",
    "The old man looked at the sea and said nothing.",
    "Can you tell me where the station is?",
    "It was a cold morning and the streets were empty.",
    "My brother bought a new car last week.",
)

Sound = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """A piece, what it is decoded behind, and its sound in one go."""

    codes: tuple[int, ...]
    context: tuple[int, ...]
    whole: Sound


@dataclass(frozen=True, slots=True)
class Difference:
    """A stream against one-go decoding."""

    error: float
    """RMS of the difference over RMS of the sound."""
    level: float
    """Largest level difference of a block, dB; blocks below -34 dB of the peak do not count."""
    mean_level: float
    first_level: float
    """Level difference of the first block, dB."""
    spectrum: float
    """Mean log-spectral distance, dB: 40 ms frames, floor 60 dB below the largest bin."""
    seam: float
    """Largest step at a seam over the largest step within 50 ms on both sides."""


def speak(bundle: Path) -> list[list[int]]:
    """Codes of the sentences."""
    from phoonnx_llasa.synthesis import Synthesizer

    synthesizer = Synthesizer.open(open_bundle(bundle))
    spoken = []
    for seed, sentence in enumerate(SENTENCES):
        options = synthesizer.options({"seed": seed})
        blocks = synthesizer.synthesize(sentence, options)
        spoken.append([code for block in blocks for code in block.codes])
    return spoken


def make_cases(codec: Codec, spoken: Sequence[Sequence[int]], kind: str) -> list[Case]:
    """Sentences behind another one, behind nothing, or five at a time behind another one."""
    count = len(spoken)
    cases = []
    for index in range(count):
        following = [spoken[(index + step) % count] for step in range(6)]
        codes = (
            [code for part in following[:5] for code in part] if kind == "long" else following[0]
        )
        context = () if kind == "no context" else tuple(following[5])
        # the whole context, not only the part that a setting would take
        everything = StreamSettings(lookback_codes=1000)
        whole = decode_whole(codec, codes, context=context, settings=everything).samples
        cases.append(Case(tuple(codes), context, whole))
    return cases[:: 3 if kind == "long" else 1]


def compare(codec: Codec, case: Case, settings: StreamSettings) -> Difference:
    """Stream a case and measure how far it is from the same in one go."""
    blocks = list(decode_stream(codec, case.codes, context=case.context, settings=settings))
    sound = np.concatenate([block.samples for block in blocks])
    ends = np.cumsum([block.samples.size for block in blocks])
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    floor = 0.02 * np.abs(case.whole).max()
    levels = [
        abs(decibels(rms(sound[a:b]), rms(case.whole[a:b])))
        for a, b in spans
        if rms(case.whole[a:b]) > floor
    ]
    return Difference(
        error=rms(sound - case.whole) / rms(case.whole),
        level=max(levels),
        mean_level=float(np.mean(levels)),
        first_level=levels[0],
        spectrum=spectral_distance(sound, case.whole),
        seam=max((seam_step(sound, int(end)) for end in ends[:-1]), default=0.0),
    )


def seam_step(sound: Sound, seam: int, reach: int = 800) -> float:
    """The step into sample ``seam`` over the largest other one within ``reach`` samples."""
    steps = np.abs(np.diff(sound[max(0, seam - 1 - reach) : seam + reach + 1]))
    here = seam - 1 - max(0, seam - 1 - reach)
    return float(steps[here] / max(np.delete(steps, here).max(), 1e-9))


def rms(sound: Sound | NDArray[np.float64]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(sound, dtype=np.float64)) + 1e-20))


def decibels(level: float, reference: float) -> float:
    """A ratio of amplitudes in dB."""
    return 20 * float(np.log10(level / reference))


def spectral_distance(sound: Sound, reference: Sound, size: int = 640, step: int = 160) -> float:
    """Log-spectral distance in dB, mean over frames of the RMS over bins."""
    a, b = (magnitudes(part, size, step) for part in (sound, reference))
    floor = 1e-3 * b.max()
    distance = 20 * np.log10((a + floor) / (b + floor))
    return float(np.sqrt(np.mean(distance**2, axis=1)).mean())


def magnitudes(sound: Sound, size: int, step: int) -> NDArray[np.float64]:
    """Short-time spectrum [frames, bins]."""
    padded = np.pad(sound.astype(np.float64), size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::step]
    return np.abs(np.fft.rfft(frames * np.hanning(size), axis=1))


def tail_level(sound: Sound, milliseconds: int = 100) -> float:
    """Level of a sound's end in dB of the whole, everything below 3 kHz taken out."""
    spectrum = np.fft.rfft(sound.astype(np.float64))
    spectrum[: round(len(sound) * 3000 / 16000)] = 0
    high = np.fft.irfft(spectrum, len(sound))
    return decibels(rms(high[-16 * milliseconds :]), rms(sound))


def print_table(title: str, rows: Iterable[tuple[str, list[Difference]]]) -> None:
    """One line per setting: means over the cases, but the worst case for level and seam."""
    print(f"\n{title}\n")
    print("| setting | error | worst level | mean level | first block | spectrum | seam |")
    print("|---|---|---|---|---|---|---|")
    for name, found in rows:
        mean = {key: np.mean([getattr(d, key) for d in found]) for key in Difference.__slots__}
        worst = {key: max(getattr(d, key) for d in found) for key in Difference.__slots__}
        print(
            f"| {name} | {mean['error']:.3f} | {worst['level']:.2f} dB "
            f"| {mean['mean_level']:.2f} dB | {worst['first_level']:.2f} dB "
            f"| {mean['spectrum']:.2f} dB | {worst['seam']:.2f} |",
            flush=True,
        )


def sweep(codec: Codec, cases: list[Case], title: str, values: dict[str, Sequence[int]]) -> None:
    """Vary one setting at a time around the defaults."""
    settings = [("defaults", StreamSettings())] + [
        (f"{name} {value}", StreamSettings(**{name: value}))
        for name, choices in values.items()
        for value in choices
    ]
    print_table(
        title,
        ((name, [compare(codec, case, chosen) for case in cases]) for name, chosen in settings),
    )


def print_timing(codec: Codec, code: int) -> None:
    """Time of one window by its size, best of three."""
    print("\nDecoding time\n\n| codes | ms | of real time |\n|---|---|---|")
    for count in (25, 50, 100, 150, 200, 400):
        best = min(_timed(codec, [code] * count) for _ in range(3))
        seconds = count * codec.hop_length / codec.sample_rate
        print(f"| {count} | {1000 * best:.1f} | {best / seconds:.4f} |")


def _timed(codec: Codec, codes: Sequence[int]) -> float:
    start = time.perf_counter()
    codec.decode(codes)
    return time.perf_counter() - start


def print_loudness(sounds: Sequence[Sound]) -> None:
    """How steady a level the gain from one sentence gives the others."""
    peaks = np.array([np.abs(sound).max() for sound in sounds])
    gains = np.array([preset_gain(sound) for sound in sounds])
    usual = np.array([np.percentile(np.abs(sound), 99.5) for sound in sounds])
    others = [gains[i] * peaks[j] for i in range(len(sounds)) for j in range(len(sounds)) if i != j]
    over = np.mean(
        [
            np.mean(np.abs(sounds[j]) * gains[i] > 1)
            for i in range(len(sounds))
            for j in range(len(sounds))
            if i != j
        ]
    )
    print("\nLoudness, in dB\n\n| what | mean | standard deviation |\n|---|---|---|")
    for name, values in (
        ("peak", peaks),
        ("99.5th percentile", usual),
        ("peak over it", peaks / usual),
        ("gain", gains),
        ("peak of the other sentences after the gain", np.array(others)),
    ):
        scaled = 20 * np.log10(values)
        print(f"| {name} | {scaled.mean():.2f} | {scaled.std():.2f} |")
    print(f"\nSamples over full range before the limiter: {100 * over:.3f} %")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, default=DEMO)
    parser.add_argument("--codec", type=Path, help="a decoder graph alone, with --codes")
    parser.add_argument("--codes", type=Path, help="JSON: a list of lists of codes")
    parser.add_argument("--quick", action="store_true", help="the defaults only")
    given = parser.parse_args(arguments)
    spoken = json.loads(given.codes.read_text()) if given.codes else speak(given.bundle)
    spoken = [codes for codes in spoken if len(codes) >= 50]
    codec = open_codec(given.codec or open_bundle(given.bundle).codec)
    print(f"{len(spoken)} sentences, {sum(map(len, spoken)) / len(spoken):.0f} codes on average")

    values: dict[str, Sequence[int]] = {}
    if not given.quick:
        values = {
            "lookback_codes": (0, 10, 25, 50, 75, 150, 200),
            "lookahead_codes": (1, 2, 3, 4, 8, 12),
            "first_block_codes": (5, 8, 15, 20, 25),
            "block_codes": (10, 25, 100, 200),
        }
    for kind in ("sentence", "no context", "long"):
        sweep(codec, make_cases(codec, spoken, kind), kind, values)

    sounds = [
        decode_whole(codec, codes, context=spoken[index - 1]).samples
        for index, codes in enumerate(spoken)
    ]
    streamed = [
        np.concatenate([b.samples for b in decode_stream(codec, codes, context=spoken[index - 1])])
        for index, codes in enumerate(spoken)
    ]
    ends = [[tail_level(sound) for sound in group] for group in (sounds, streamed)]
    print(
        f"\nLast 100 ms above 3 kHz: {np.mean(ends[0]):.1f} dB in one go, "
        f"{np.mean(ends[1]):.1f} dB streamed, "
        f"largest rise {max(b - a for a, b in zip(*ends, strict=True)):.1f} dB"
    )
    print_loudness(sounds)
    print_timing(codec, spoken[0][0])


if __name__ == "__main__":
    main()
