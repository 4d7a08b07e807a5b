"""Does the voice come to an end where the text does? Many sentences, judged mostly by their length.

    python -m scripts.demo.text --count 520 --seed 7 --out endings.txt
    python -m scripts.demo.endings endings.txt --work work/ --bundle phoonnx_llasa/demo

Sentences of the training text are left out (``work/text.txt``). Every sentence is spoken once with
the bundle's defaults and held against the teacher's length: below 0.75 is an early stop, above 1.3
a run-on. A sound that is cut off does not fade: its last 20 ms are less than 25 dB below its
loudest 20 ms. Whisper hears every n-th sentence and all that are suspicious.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from scripts.demo.evaluate import LONG, SHORT, Sound, by_voice, read_set
from scripts.demo.listen import Listener, word_errors, words
from scripts.demo.teacher import Teacher
from scripts.demo.text import bare

FADED = 25.0
"""dB below the loudest 20 ms."""


@dataclass
class Ending:
    """One sentence as spoken."""

    text: str
    ratio: float
    """Length against the teacher's."""
    fade: float
    """How far the last 20 ms lie below the loudest, dB."""
    truncated: bool
    heard: str | None = None
    last_heard: bool | None = None
    errors: int = 0

    @property
    def suspicious(self) -> bool:
        """Anything but the ear says that the ending is wrong."""
        return self.truncated or not SHORT <= self.ratio <= LONG or self.fade < FADED


def fade(sound: Sound) -> float:
    """How far the last 20 ms lie below the loudest, dB."""
    power = (sound[: len(sound) // 320 * 320].reshape(-1, 320) ** 2).mean(1) + 1e-12
    return float(10 * np.log10(power.max() / power[-1]))


def fresh(path: Path, training: Path, count: int) -> list[str]:
    """The first sentences of a file that the training did not read."""
    seen = {bare(line) for line in training.read_text().splitlines()}
    texts = [text for text in read_set(path) if bare(text) not in seen][:count]
    if len(texts) < count:
        raise SystemExit(f"{path} has only {len(texts)} sentences that were not trained on")
    return texts


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder of text.txt")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--listen-every", type=int, default=5)
    parser.add_argument("--extra", type=json.loads, default={}, help="extra_params as JSON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    texts = fresh(arguments.sentences, arguments.work / "text.txt", arguments.count)
    teacher, listener = Teacher(arguments.work), Listener(arguments.threads)
    speak = by_voice(arguments.bundle, 0, arguments.extra)
    endings = []
    for index, text in enumerate(texts):
        spoken = teacher.speak(text)
        if spoken is None:
            continue
        sound, truncated = speak(text, index)
        ending = Ending(text, len(sound) / len(spoken[0]), fade(sound), truncated)
        if ending.suspicious or index % arguments.listen_every == 0:
            ending.heard = listener(sound)
            ending.last_heard = words(text)[-1] in words(ending.heard)[-2:]
            ending.errors = word_errors(text, ending.heard)[0]
        if ending.suspicious or ending.last_heard is False:
            print(json.dumps(asdict(ending)), flush=True)
        endings.append(ending)
    ratios = [ending.ratio for ending in endings]
    listened = [ending for ending in endings[:: arguments.listen_every] if ending.heard is not None]
    figures = {
        "sentences": len(endings),
        "length": f"{np.mean(ratios):.3f} +- {np.std(ratios):.3f}",
        "shortest, longest": [round(min(ratios), 2), round(max(ratios), 2)],
        "early stops": sum(ratio < SHORT for ratio in ratios),
        "run-ons": sum(ratio > LONG for ratio in ratios),
        "truncated": sum(ending.truncated for ending in endings),
        "not faded": sum(ending.fade < FADED for ending in endings),
        "last word heard": f"{sum(bool(e.last_heard) for e in listened)} of {len(listened)}",
    }
    print(json.dumps(figures))
    if arguments.out:
        results = {"figures": figures, "endings": [asdict(ending) for ending in endings]}
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
