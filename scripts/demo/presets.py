"""The built-in voice's presets: sentences it says itself, checked by whisper.

    python -m scripts.demo.presets phoonnx_llasa/demo

Each preset is an utterance made without a preset, with the first seed for which whisper hears every
word and the pace is close to what was asked for; so the shipped voices.json can be made again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.presets import NO_PRESET, Preset, Voices, make_preset, write_voices
from phoonnx_llasa.prompt import SpeechTokenizer
from phoonnx_llasa.synthesis import Synthesizer
from scripts.demo.listen import Listener, word_errors

NOTE = "Spoken by the model itself; no recording of a person is involved."
SEEDS = 40


@dataclass(frozen=True)
class Wish:
    """A preset to be made."""

    name: str
    text: str
    temperature: float


WISHES = (
    Wish("calm", "The garden is very quiet in the evening.", 0.4),
    Wish("lively", "Hello there, it is so good to see you!", 0.8),
    Wish("story", "Once upon a time there was a little house by the sea.", 0.6),
)


def find_preset(voice: Synthesizer, wish: Wish, listener: Listener, num_codes: int) -> Preset:
    """The first seed that is heard without an error.

    Raises:
        SystemExit: none is.
    """
    for seed in range(SEEDS):
        options = voice.options(
            {"voice": NO_PRESET, "seed": seed, "temperature": wish.temperature, "stream": False}
        )
        blocks = list(voice.synthesize(wish.text, options))
        sound = np.concatenate([block.samples for block in blocks])
        if any(block.truncated for block in blocks) or word_errors(wish.text, listener(sound))[0]:
            continue
        return make_preset(
            wish.name,
            text=wish.text,
            lang="en",
            codes=[code for block in blocks for code in block.codes],
            num_codes=num_codes,
            seed=seed,
        )
    raise SystemExit(f"no seed below {SEEDS} says {wish.text!r} without an error")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    arguments = parser.parse_args()
    bundle = open_bundle(arguments.bundle)
    voice, listener = Synthesizer.open(bundle), Listener()
    num_codes = SpeechTokenizer(bundle.tokenizer).num_codes
    presets = {wish.name: find_preset(voice, wish, listener, num_codes) for wish in WISHES}
    voices = Voices(presets, WISHES[0].name, {})
    write_voices(arguments.bundle / bundle.config.files.voices, voices, note=NOTE)
    for preset in presets.values():
        print(preset.name, preset.seed, len(preset.codes), preset.text)


if __name__ == "__main__":
    main()
