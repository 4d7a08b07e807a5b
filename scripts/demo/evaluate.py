"""How the built-in voice is judged: by whisper, by its lengths, by its level and spectrum.

    python -m scripts.demo.evaluate --work work/ --bundle phoonnx_llasa/demo --out results.json

Sets of sentences are text files, one a line; the first is held_out.txt. The teacher and the codec
alone (teacher audio through encoder and decoder) are measured beside the whole voice, which speaks
through the package itself, in one go and streamed, with the bundle's own defaults unless told
otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.synthesis import Synthesizer
from scripts.demo.listen import Listener, word_errors, words
from scripts.demo.text import HELD_OUT

Sound = NDArray[np.float32]
SHORT, LONG = 0.75, 1.3
"""Bounds on length against the teacher: below is an early stop, above a run-on."""


@dataclass
class Clip:
    """One sentence as spoken."""

    text: str
    heard: str
    seconds: float
    errors: int
    words: int
    last_heard: bool
    """The last word of the text is among the last two heard."""
    level: float
    """dB re full scale, RMS of the 20 ms frames within 40 dB of the loudest."""
    truncated: bool = False


@dataclass
class Result:
    """One system on one set."""

    name: str
    clips: list[Clip] = field(default_factory=list)
    spectrum: list[float] = field(default_factory=list)
    """Mean power of each of 40 mel bands in dB, its own mean removed."""
    speed: float = 0.0
    """Seconds of computing per second of sound."""

    @property
    def wer(self) -> float:
        """Word error rate in percent."""
        return 100 * sum(c.errors for c in self.clips) / sum(c.words for c in self.clips)


def read_set(path: Path) -> list[str]:
    """The sentences of a file, one a line."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def active_frames(sound: Sound) -> Sound:
    """20 ms frames [n, 320] within 40 dB of the loudest."""
    frames = sound[: len(sound) // 320 * 320].reshape(-1, 320)
    power = (frames**2).mean(1) + 1e-12
    return frames[power > power.max() * 1e-4]


def band_powers(sounds: Iterable[Sound]) -> list[float]:
    """Mean power of 40 mel bands in dB over all sounds, its own mean removed."""
    from scripts.demo.codec import mel_filters

    window = np.hanning(640)
    total = np.zeros(321)
    for sound in sounds:
        frames = np.lib.stride_tricks.sliding_window_view(sound, 640)[::320]
        total += (np.abs(np.fft.rfft(frames * window)) ** 2).sum(0)
    bands = 10 * np.log10(mel_filters(640, 40).numpy() @ total + 1e-12)
    return (bands - bands.mean()).round(2).tolist()


def judge(
    name: str,
    texts: Sequence[str],
    speak: Callable[[str, int], tuple[Sound, bool]],
    listener: Listener,
    folder: Path | None = None,
) -> Result:
    """Speak every text and listen to it."""
    result, sounds, took = Result(name), [], 0.0
    for index, text in enumerate(texts):
        began = time.process_time()
        sound, truncated = speak(text, index)
        took += time.process_time() - began
        heard = listener(sound)
        errors, count = word_errors(text, heard)
        level = 10 * np.log10((active_frames(sound) ** 2).mean() + 1e-12)
        result.clips.append(
            Clip(
                text,
                heard,
                len(sound) / 16000,
                errors,
                count,
                words(text)[-1] in words(heard)[-2:],
                round(float(level), 2),
                truncated,
            )
        )
        sounds.append(sound)
        if folder:
            write_wav(folder / f"{index:03d}.wav", sound)
    result.spectrum = band_powers(sounds)
    result.speed = took / sum(clip.seconds for clip in result.clips)
    return result


def write_wav(path: Path, sound: Sound) -> None:
    """16-bit mono at 16 kHz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def teacher_and_codec(work: Path, codec_path: Path | None) -> tuple[Any, Any]:
    """Speakers for ``judge``: the teacher, and the codec fed with it."""
    import torch

    from scripts.demo.codec import load_codec
    from scripts.demo.teacher import Teacher

    teacher = Teacher(work)
    codec = load_codec(codec_path) if codec_path else None

    def by_teacher(text: str, _: int) -> tuple[Sound, bool]:
        spoken = teacher.speak(text.lower())
        if spoken is None:
            raise SystemExit(f"the teacher cannot align {text!r}")
        return spoken[0], False

    def by_codec(text: str, index: int) -> tuple[Sound, bool]:
        sound = by_teacher(text, index)[0]
        with torch.no_grad():
            padded = torch.from_numpy(np.pad(sound, (0, 20 * 320)))[None]
            _, codes = codec.encode(padded)
            made = codec.decode(codes[:, : len(sound) // 320].long())
        return made[0].numpy(), False

    return by_teacher, by_codec if codec else None


def by_voice(
    bundle: Path, seed: int, extra: dict[str, Any]
) -> Callable[[str, int], tuple[Sound, bool]]:
    """The voice as the package speaks it; every sentence has a seed of its own."""
    synthesizer = Synthesizer.open(open_bundle(bundle))

    def speak(text: str, index: int) -> tuple[Sound, bool]:
        options = synthesizer.options({"seed": 1000 * seed + index, **extra})
        blocks = list(synthesizer.synthesize(text, options))
        sound = np.concatenate([block.samples for block in blocks])
        return sound, any(block.truncated for block in blocks)

    return speak


def summary(result: Result, teacher: Result | None, codec: Result | None) -> dict[str, Any]:
    """The figures of one line of the table."""
    line: dict[str, Any] = {
        "name": result.name,
        "sentences": len(result.clips),
        "wer": round(result.wer, 1),
        "last word heard": sum(c.last_heard for c in result.clips),
        "truncated": sum(c.truncated for c in result.clips),
        "speed": round(result.speed, 2),
    }
    if teacher:
        ratios = [
            one.seconds / other.seconds
            for one, other in zip(result.clips, teacher.clips, strict=True)
        ]
        line["length"] = f"{np.mean(ratios):.2f} +- {np.std(ratios):.2f}"
        line["early stops"] = sum(ratio < SHORT for ratio in ratios)
        line["run-ons"] = sum(ratio > LONG for ratio in ratios)
    if codec:
        levels = [a.level - b.level for a, b in zip(result.clips, codec.clips, strict=True)]
        bands = np.subtract(result.spectrum, codec.spectrum)
        line["level against codec, dB"] = round(float(np.mean(levels)), 2)
        line["spectrum against codec, dB"] = round(float(np.sqrt((bands**2).mean())), 2)
    return line


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the teacher's graph")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--codec", type=Path, help="codec.pt, for the codec alone")
    parser.add_argument("--sentences", type=Path, default=HELD_OUT)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--extra", type=json.loads, default={}, help="extra_params as JSON")
    parser.add_argument("--modes", nargs="*", default=["one go", "streamed"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sounds", type=Path, help="folder for the WAV files")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    texts = read_set(arguments.sentences)[: arguments.limit]
    listener = Listener(arguments.threads)
    lines, results = [], []

    def add(name: str, speak: Any, *others: Result | None) -> Result:
        folder = arguments.sounds / name.replace(" ", "_") if arguments.sounds else None
        result = judge(name, texts, speak, listener, folder)
        lines.append(summary(result, *others))
        results.append(asdict(result))
        print(json.dumps(lines[-1]), flush=True)
        return result

    by_teacher, by_codec = teacher_and_codec(arguments.work, arguments.codec)
    teacher = add("teacher", by_teacher, None, None)
    codec = add("codec", by_codec, teacher, None) if by_codec else None
    if arguments.bundle:
        for mode in arguments.modes:
            for seed in arguments.seeds:
                extra = {"stream": mode == "streamed", **arguments.extra}
                speak = by_voice(arguments.bundle, seed, extra)
                add(f"{mode}, seed {seed}", speak, teacher, codec)
    if arguments.out:
        arguments.out.write_text(json.dumps({"lines": lines, "results": results}, indent=1))


if __name__ == "__main__":
    main()
