"""Teacher audio: every line of the text spoken by hibari-tts, with the time of each phoneme.

hibari-tts (Apache-2.0) is deterministic with a seed, runs about eighty times faster than real time
on one core, and its graph computes the length of every phoneme (a tensor of 25 ms steps), which is
handed out here as one more output: from it the language model learns where in the text it is.

A shard is ``NNN.npz``: ``pcm`` int16 [320 * frames] at 16 kHz, utterances end to end, each a whole
number of 20 ms frames, and ``rows``, one JSON object a line: ``text`` (lower case), ``start`` and
``frames`` (both in frames), ``phonemes`` (one string per word of the text, its punctuation
included) and ``ends`` (per word and phoneme, the frame in which it ends, a float; after the last
phoneme of a word its following pause is the ``gaps`` entry).

    python -m scripts.demo.teacher text.txt teacher/ --part 0 --parts 2
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.demo.text import DAYS, MONTHS, NAMES

SHARD = 500
FRAME = 320
DURATIONS = "/Clip_output_0"
"""The tensor of phoneme lengths in hibari-tts 0.2.1's graph."""
FRAMES_PER_STEP = 25 / 20
LEAD = 2.0
"""Frames kept before the first phoneme."""
TAIL = 1280
"""Samples kept after the last audible one."""
AUDIBLE = 0.004
_CAPITALS = re.compile(rf"\b({'|'.join(['i', *NAMES, *DAYS, *MONTHS])})\b")


@dataclass
class Row:
    """One utterance."""

    text: str
    start: int
    frames: int
    phonemes: list[str]
    ends: list[list[float]]
    gaps: list[float]


class Teacher:
    """hibari-tts that also tells how long each phoneme is."""

    def __init__(self, work: Path) -> None:
        import hibari
        import onnx

        source = Path(hibari.__file__).parent / "assets" / "hibari.onnx"
        path = work / "hibari_durations.onnx"
        if not path.exists():
            model = onnx.load(source)
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(DURATIONS))
            onnx.save(model, path)
        self._tts = hibari.Hibari(model=str(path))

    def phonemes(self, text: str) -> list[str] | None:
        """Phonemes per word, or None where they cannot be told apart."""
        spoken = _CAPITALS.sub(lambda match: match.group().capitalize(), text)
        chunks = self._tts.phonemize(spoken[0].upper() + spoken[1:])
        if len(chunks) != 1:
            return None
        known = "".join(c for c in chunks[0] if c in self._tts.vocab)
        words = known.split(" ")
        return words if len(words) == len(text.split(" ")) and all(words) else None

    def speak(self, text: str, seed: int = 0) -> tuple[NDArray[np.float32], Row] | None:
        """Sound at 16 kHz [320 * frames] and its row, or None for a text it cannot align."""
        from hibari import dsp

        words = self.phonemes(text)
        if words is None:
            return None
        phonemes = " ".join(words)
        outputs = self._tts.sess.run(
            None,
            {
                "ids": np.asarray([self._tts.ids(phonemes)], np.int64),
                "speed": np.ones(1, np.float32),
            },
        )
        *parts, lengths = outputs
        sound = to_16k(dsp.synth(*(x[0] for x in parts), np.random.default_rng(seed)))
        ends = np.cumsum(lengths.reshape(-1).astype(np.float64)) * FRAMES_PER_STEP
        first = max(0, round((ends[0] - LEAD) * FRAME))
        audible = np.nonzero(np.abs(sound) > AUDIBLE)[0]
        if not len(audible):
            return None
        last = min(len(sound), audible[-1] + TAIL)
        frames = int(-(-(last - first) // FRAME))
        whole = np.zeros(frames * FRAME, np.float32)
        cut = sound[first : first + len(whole)]
        whole[: len(cut)] = cut
        times = iter(np.minimum(ends[1:-1] - first / FRAME, frames).round(2).tolist())
        word_ends, gaps = [], []
        for index, word in enumerate(words):
            word_ends.append([next(times) for _ in word])
            gaps.append(next(times) if index < len(words) - 1 else float(frames))
        return whole, Row(text, 0, frames, words, word_ends, gaps)


def to_16k(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """24 kHz -> 16 kHz, band-limited exactly (the whole clip's spectrum, cut)."""
    length = len(sound) // 6 * 6
    spectrum = np.fft.rfft(sound[:length].astype(np.float64))
    shorter = length * 2 // 3
    return (np.fft.irfft(spectrum[: shorter // 2 + 1], shorter) * (2 / 3)).astype(np.float32)


def make_shard(teacher: Teacher, lines: list[str], path: Path) -> None:
    """Speak some lines into one file; lines that cannot be aligned are left out."""
    sounds: list[NDArray[np.int16]] = []
    rows: list[str] = []
    start = 0
    for line in lines:
        spoken = teacher.speak(line)
        if spoken is None:
            continue
        sound, row = spoken
        row.start = start
        start += row.frames
        sounds.append((np.clip(sound, -1, 1) * 32767).astype(np.int16))
        rows.append(json.dumps(asdict(row), ensure_ascii=False))
    temporary = path.with_suffix(".part.npz")
    np.savez(temporary, pcm=np.concatenate(sounds), rows=np.array("\n".join(rows)))
    temporary.replace(path)


def read_shard(path: Path) -> tuple[NDArray[np.int16], list[dict[str, Any]]]:
    """Samples and rows of one shard."""
    with np.load(path) as data:
        return data["pcm"], [json.loads(line) for line in str(data["rows"]).splitlines()]


def shards(folder: Path) -> Iterator[Path]:
    """The finished shards of a folder, in order."""
    return (path for path in sorted(folder.glob("*.npz")) if ".part" not in path.name)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lines", type=int, help="speak only the first lines")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    arguments = parser.parse_args()
    lines = arguments.text.read_text().lower().split("\n")
    lines = [line.strip() for line in lines if line.strip()][: arguments.lines]
    arguments.out.mkdir(parents=True, exist_ok=True)
    teacher = Teacher(arguments.out.parent)
    for index in range(arguments.part, -(-len(lines) // SHARD), arguments.parts):
        path = arguments.out / f"{index:03d}.npz"
        if not path.exists():
            make_shard(teacher, lines[index * SHARD : (index + 1) * SHARD], path)
            print(path.name, flush=True)


if __name__ == "__main__":
    main()
