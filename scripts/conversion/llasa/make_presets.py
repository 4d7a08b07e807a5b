"""Presets from text alone: the model invents speakers, and the best of them become voices.json.

    python -m scripts.conversion.llasa.make_presets llasa-1b-onnx voices.json

Nobody is recorded. Each preset is a sentence spoken without any preset, so every seed is another
speaker; of several seeds that pass the measures below the one with the most ordinary pace is taken
(and, where the `listen` extra is installed, the one that whisper understands best). The seed is
kept, so the same bundle gives the same presets again.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa import candidates
from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.files import read_json
from phoonnx_llasa.presets import (
    Preset,
    Voices,
    make_preset,
    write_voices,
)
from phoonnx_llasa.synthesis import Synthesizer

logger = logging.getLogger(__name__)

Listen = Callable[[NDArray[np.float32]], str]

NOTE: Final = (
    "Every preset was spoken by the model itself from text and a seed; no person was recorded."
)
#: Ordinary speech: 13 letters a second (see synthesis.py).
USUAL_RATE: Final = 13.0


@dataclass(frozen=True, slots=True)
class Wish:
    """A preset to be made."""

    name: str
    lang: str
    text: str
    pitch: tuple[float, float] | None = None
    """Hertz: a voice whose median lies outside is passed over."""


@dataclass(frozen=True, slots=True)
class Bounds(candidates.Bounds):
    """What a candidate has to keep to."""

    word_errors: float = 0.1


#: Of Llasa. Women speak at about 165 to 255 Hz, men at 85 to 155 Hz.
WISHES: Final = (
    Wish(
        "en_female_a",
        "en",
        "The rain had stopped before the morning came, and the whole street smelled of wet leaves.",
        (165, 300),
    ),
    Wish(
        "en_male_a",
        "en",
        "We left the harbor early, when the water was still calm and the town was fast asleep.",
        (70, 155),
    ),
    Wish(
        "zh_female_a",
        "zh",
        "今天的天气很好，我们一起去公园散步，然后在湖边喝一杯热茶。",
        (165, 300),
    ),
    Wish("zh_male_a", "zh", "傍晚的时候，他一个人走在回家的路上，心里想着明天的工作。", (70, 155)),
)


class NoCandidateError(Exception):
    """No seed gave a preset that passes."""


@dataclass(frozen=True, slots=True)
class Candidate(candidates.Candidate):
    """One seed's try, and whether it is understood."""

    word_errors: float | None = None
    """Share of the words that whisper heard wrongly; None where it was not asked."""

    def faults_for(self, wish: Wish, bounds: Bounds) -> list[str]:
        """What speaks against it, in words."""
        faults = self.faults(replace(bounds, pitch=wish.pitch))
        if self.word_errors is not None and self.word_errors > bounds.word_errors:
            faults.append(f"{self.word_errors:.0%} of the words misheard")
        return faults

    def rank(self) -> tuple[float, float]:
        """Smaller is better."""
        return self.word_errors or 0.0, abs(float(np.log(self.measures.rate / USUAL_RATE)))


def speak(voice: Synthesizer, wish: Wish, seed: int, listen: Listen | None) -> Candidate:
    """Let the model invent a speaker for a wish.

    Raises:
        ParameterError: the sentence is so long that it is spoken in pieces.
    """
    spoken = candidates.speak_candidate(voice, wish.text, seed)
    errors = None
    if listen is not None:
        from scripts.demo.listen import word_errors

        wrong, words = word_errors(wish.text, listen(spoken.sound))
        errors = wrong / max(words, 1)
    parts = {field.name: getattr(spoken, field.name) for field in fields(spoken)}
    return Candidate(**parts, word_errors=errors)


def find_preset(
    voice: Synthesizer,
    wish: Wish,
    *,
    seeds: Sequence[int],
    enough: int = 3,
    bounds: Bounds | None = None,
    listen: Listen | None = None,
) -> Preset:
    """Try seeds in turn until `enough` of them pass; the best of these is the preset.

    Raises:
        NoCandidateError: none passes; says what was wrong with each.
        ParameterError: the sentence is too long for one piece.
    """
    good: list[tuple[tuple[float, float], int, Candidate]] = []
    tried = []
    for seed in seeds:
        candidate = speak(voice, wish, seed, listen)
        faults = candidate.faults_for(wish, bounds or Bounds())
        logger.info("%s, seed %d: %s", wish.name, seed, "; ".join(faults) or "good")
        tried.append(f"seed {seed}: {'; '.join(faults)}")
        if not faults:
            good.append((candidate.rank(), seed, candidate))
        if len(good) >= enough:
            break
    if not good:
        raise NoCandidateError(f"{wish.name}: no seed is good enough\n" + "\n".join(tried))
    _, seed, best = min(good, key=lambda each: each[:2])
    return make_preset(
        wish.name,
        text=wish.text,
        lang=wish.lang,
        codes=best.codes,
        num_codes=voice.tokenizer.num_codes,
        seed=seed,
    )


def open_listener() -> Listen | None:
    """Whisper for English, where the `listen` extra is installed."""
    try:
        from scripts.demo.listen import Listener

        return Listener()
    except ImportError as error:
        logger.info("whisper does not listen (%s); `listen` is the extra with it", error)
        return None


def read_wishes(path: Path) -> list[Wish]:
    """Wishes of a JSON file: a list of objects with name, lang, text and maybe pitch [low, high].

    Raises:
        BundleError: the file cannot be read.
        ValueError: it holds something else.
    """
    try:
        wishes = []
        for entry in read_json(path):
            band: Any = entry.get("pitch")
            pitch = None if band is None else (float(band[0]), float(band[1]))
            wishes.append(Wish(entry["name"], entry["lang"], entry["text"], pitch))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no list of wishes: {error!r}") from error
    return wishes


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 if a preset cannot be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("bundle", type=Path, help="a bundle, with or without presets")
    parser.add_argument("output", type=Path, help="the voices.json to write")
    parser.add_argument("--wishes", type=Path, help="JSON list of name, lang, text, pitch")
    parser.add_argument("--default", help="name of the default preset (default: the first)")
    parser.add_argument("--seeds", type=int, default=24, help="most seeds to try for each")
    parser.add_argument("--enough", type=int, default=3, help="good ones to choose from")
    parser.add_argument(
        "--listen", action=argparse.BooleanOptionalAction, default=True, help="ask whisper"
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        wishes = read_wishes(arguments.wishes) if arguments.wishes else list(WISHES)
        default = arguments.default or wishes[0].name
        if default not in {wish.name for wish in wishes}:
            parser.error(f"--default {default} is none of the presets that are made")
        voice = Synthesizer.open(open_bundle(arguments.bundle))
        listen = open_listener() if arguments.listen else None
        presets = {
            wish.name: find_preset(
                voice,
                wish,
                seeds=range(arguments.seeds),
                enough=arguments.enough,
                listen=listen if wish.lang.startswith("en") else None,
            )
            for wish in wishes
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_voices(arguments.output, Voices(presets, default), note=NOTE)
    except (LlasaError, NoCandidateError, OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    for preset in presets.values():
        print(f"{preset.name}: seed {preset.seed}, {len(preset.codes)} codes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
