"""A sentence spoken without any preset: each seed is another speaker, who may become a preset."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.measures import Measures, measure
from phoonnx_llasa.presets import MAX_REFERENCE_CODES, NO_PRESET
from phoonnx_llasa.synthesis import Synthesizer


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a good preset keeps to."""

    clipped: float = 1e-3
    """Share of the samples at full scale."""
    longest_silence: float = 0.8
    """Seconds."""
    rate: tuple[float, float] = (7.0, 28.0)
    """Letters a second."""
    ending_db: float = -12.0
    """Level of the end against the loud parts: speech that was cut off has no fall."""
    pitch: tuple[float, float] | None = None
    """Hertz: a voice whose median lies outside is another than was wished for."""


USUAL_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One seed's try."""

    seed: int
    codes: tuple[int, ...]
    sound: NDArray[np.float32]
    """As the codec makes it, [hop_length * codes]."""
    measures: Measures
    truncated: bool
    """The model did not come to an end by itself."""

    def defects(self) -> list[str]:
        """Why it cannot be a preset, in words: who replays it would finish the sentence first."""
        found = []
        if self.truncated:
            found.append("did not end by itself")
        if len(self.codes) > MAX_REFERENCE_CODES:
            found.append(f"has {len(self.codes)} codes, at most {MAX_REFERENCE_CODES} can be used")
        return found

    def faults(self, bounds: Bounds = USUAL_BOUNDS) -> list[str]:
        """What speaks against it, in words."""
        measured, faults = self.measures, self.defects()
        if measured.clipped > bounds.clipped:
            faults.append(f"{measured.clipped:.2%} clipped")
        if measured.longest_silence > bounds.longest_silence:
            faults.append(f"{measured.longest_silence:.1f} s of silence")
        if not bounds.rate[0] <= measured.rate <= bounds.rate[1]:
            faults.append(f"{measured.rate:.1f} letters a second")
        if measured.ending_db > bounds.ending_db:
            faults.append(f"ends at {measured.ending_db:.0f} dB, as if cut off")
        if bounds.pitch is not None and not bounds.pitch[0] <= measured.pitch <= bounds.pitch[1]:
            faults.append(f"pitch {measured.pitch:.0f} Hz")
        return faults


def speak_candidate(voice: Synthesizer, text: str, seed: int) -> Candidate:
    """Let the model invent a speaker. The same seed and text give the same one.

    Raises:
        ParameterError: the text is spoken in pieces, or holds nothing to speak.
        UnreadableTextError: the model knows none of its characters.
    """
    options = voice.options({"voice": NO_PRESET, "seed": seed, "stream": False})
    codes: list[int] = []
    sound: list[NDArray[np.float32]] = []
    truncated = False
    with closing(voice.synthesize(text, options)) as blocks:
        for block in blocks:
            if block.piece:
                raise ParameterError(
                    "text", text, "a shorter sentence; this one is spoken in pieces"
                )
            codes += block.codes
            sound.append(block.samples)
            truncated |= block.truncated
    if not codes:
        raise ParameterError("text", text, "a sentence to speak")
    samples = np.concatenate(sound)
    measures = measure(samples, voice.sample_rate, text)
    return Candidate(seed, tuple(codes), samples, measures, truncated)
