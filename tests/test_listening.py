"""The built-in voice as a listener hears it: whisper tiny.en on sentences it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.synthesis import Synthesizer
from scripts.demo.evaluate import judge, read_set
from scripts.demo.listen import Listener, distance, number_words, word_errors, words
from scripts.demo.text import HELD_OUT

#: Percent; docs/demo-voice.md measures 6. Chance moves 50 sentences by about 2 points.
WHOLE_VOICE_LIMIT = 10.0
#: Points between streamed and one go; up to 0.9 were measured.
STREAMING_COST = 2.0


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener()


@pytest.fixture(scope="module")
def voice(demo_bundle: Path) -> Synthesizer:
    return Synthesizer.open(open_bundle(demo_bundle))


def speaker(voice: Synthesizer, extra: Mapping[str, Any], *, seed: int = 0) -> Any:
    def speak(text: str, index: int) -> tuple[np.ndarray, bool]:
        options = voice.options({"seed": 1000 * seed + index, **extra})
        blocks = list(voice.synthesize(text, options))
        return np.concatenate([b.samples for b in blocks]), any(b.truncated for b in blocks)

    return speak


def held_out() -> list[str]:
    return read_set(HELD_OUT)


def test_words_are_compared_without_case_punctuation_and_digits() -> None:
    assert words("It's 12:00, Dr. O\u2019Neil: $1,250!") == (
        "it's twelve dr o'neil one thousand two hundred fifty dollars".split()
    )
    assert number_words(999_999).startswith("nine hundred ninety nine thousand nine hundred")


def test_word_errors_count_the_fewest_changes_and_at_most_two_a_word() -> None:
    assert distance("the cat sat".split(), "a cat sat down".split()) == 2
    assert word_errors("Mind the step.", "mind the step") == (0, 3)
    assert word_errors("Stop.", "it is not what was said at all") == (2, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_short_sentences_are_understood(
    voice: Synthesizer, listener: Listener, stream: bool
) -> None:
    texts = [text for text in held_out() if len(text.split()) <= 6][:6]
    result = judge("short", texts, speaker(voice, {"stream": stream}), listener)
    assert result.wer <= 20, [(clip.text, clip.heard) for clip in result.clips]
    assert not any(clip.truncated for clip in result.clips)


@pytest.mark.slow
class TestHeldOutSentences:
    """All fifty, as docs/demo-voice.md lists them."""

    @pytest.fixture(scope="class")
    def one_go(self, voice: Synthesizer, listener: Listener) -> list[float]:
        return [
            judge("one go", held_out(), speaker(voice, {"stream": False}, seed=seed), listener).wer
            for seed in range(2)
        ]

    def test_are_understood(self, one_go: list[float]) -> None:
        assert np.mean(one_go) <= WHOLE_VOICE_LIMIT, one_go

    def test_are_understood_as_well_when_streamed(
        self, voice: Synthesizer, listener: Listener, one_go: list[float]
    ) -> None:
        # The same seed makes the same codes, so only the decoding in blocks differs.
        streamed = judge("streamed", held_out(), speaker(voice, {"stream": True}), listener)
        assert streamed.wer <= one_go[0] + STREAMING_COST, (one_go, streamed.wer)
