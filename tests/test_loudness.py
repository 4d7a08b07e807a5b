"""One gain for a call, a limiter, and the host's own rule."""

from __future__ import annotations

import numpy as np
import pytest

from phoonnx_llasa.loudness import apply_gain, normalize_peak, preset_gain


def speech_like(seed: int, level: float, seconds: float = 3.0) -> np.ndarray:
    """Noise with a syllable-like envelope and the crest factor of speech."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(16000 * seconds)) / 16000
    envelope = np.abs(np.sin(2 * np.pi * 2 * time + rng.uniform(0, 6))) ** 2
    return (level * envelope * rng.laplace(size=time.size) / 6).astype(np.float32)


@pytest.mark.parametrize("level", [0.07, 0.3, 1.0, 3.0])
def test_gain_brings_a_speaker_to_the_same_level_however_loud_recorded(level: float) -> None:
    reference = speech_like(0, 1.0)
    sound = speech_like(0, level)
    gain = preset_gain(sound)
    assert gain * level == pytest.approx(preset_gain(reference), rel=1e-4)
    peak = gain * np.abs(sound).max()
    assert 1.0 <= peak < 2.5
    assert np.mean(np.abs(gain * sound) > 1) < 0.003


def test_gain_is_never_below_the_hosts() -> None:
    tone = 0.5 * np.sin(np.arange(16000) / 5).astype(np.float32)
    assert preset_gain(tone) == pytest.approx(2.0, rel=1e-3)


def test_single_click_hardly_changes_the_gain() -> None:
    sound = speech_like(1, 0.3)
    clicked = sound.copy()
    clicked[100] = 1.0
    assert preset_gain(clicked) == pytest.approx(preset_gain(sound), rel=0.01)


def test_neighbouring_sentences_are_closer_in_level_than_by_their_peaks() -> None:
    sounds = [speech_like(seed, 0.3) for seed in range(20)]
    by_peak = np.std([np.log(np.abs(sound).max()) for sound in sounds])
    by_gain = np.std([np.log(preset_gain(sound)) for sound in sounds])
    assert by_gain < 0.7 * by_peak


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(0, np.float32),
        np.zeros(1000, np.float32),
        np.full(1000, 1e-9, np.float32),
        np.array([0.1, np.nan], np.float32),
        np.array([0.1, np.inf], np.float32),
    ],
    ids=["empty", "zeros", "silence", "nan", "inf"],
)
def test_nothing_to_measure_leaves_the_level(samples: np.ndarray) -> None:
    assert preset_gain(samples) == 1.0


def test_gain_is_bounded() -> None:
    assert preset_gain(speech_like(2, 1e-4)) == 20.0
    assert preset_gain(speech_like(2, 1e3)) == pytest.approx(0.1)
    one_click = np.zeros(16000, np.float32)
    one_click[5] = 0.5
    assert preset_gain(one_click) == 20.0


def test_below_the_knee_the_gain_is_all_that_happens() -> None:
    samples = np.linspace(-0.4, 0.4, 801, dtype=np.float32)
    np.testing.assert_array_equal(apply_gain(samples, 2.0), 2 * samples)


def test_limiter_is_smooth_rising_symmetric_and_stays_within_full_range() -> None:
    samples = np.linspace(0, 3, 30001, dtype=np.float32)
    limited = apply_gain(samples, 1.0)
    slope = np.diff(limited) / np.diff(samples)
    assert np.all(slope >= -1e-3)
    assert np.all(slope[:5000] == pytest.approx(1.0, abs=2e-3))
    assert np.abs(np.diff(slope)).max() < 5e-3
    assert limited[10000] == pytest.approx(0.952, abs=1e-3)
    assert limited.max() <= 1.0
    np.testing.assert_array_equal(apply_gain(-samples, 1.0), -limited)
    huge = np.array([1e30, -1e30], np.float32)
    np.testing.assert_array_equal(apply_gain(huge, 20.0), [1.0, -1.0])


def test_blocks_come_out_as_the_whole_does() -> None:
    sound = speech_like(3, 1.0)
    whole = apply_gain(sound, 2.5)
    cuts = np.cumsum([100, 1, 3200, 6400])
    blocks = [apply_gain(part, 2.5) for part in np.split(sound, cuts)]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_samples_given_are_left_alone() -> None:
    sound = speech_like(4, 5.0)
    sound.setflags(write=False)
    for result in (apply_gain(sound, 1.0), apply_gain(sound, 0.1), normalize_peak(sound)):
        assert result.dtype == np.float32
        assert result.shape == sound.shape
        assert result is not sound


def test_empty_in_empty_out() -> None:
    empty = np.zeros(0, np.float32)
    assert apply_gain(empty, 3.0).shape == (0,)
    assert normalize_peak(empty).shape == (0,)


def test_normalizing_divides_by_the_peak_and_keeps_silence() -> None:
    sound = speech_like(5, 0.2)
    expected = sound / np.max(np.abs(sound))
    np.testing.assert_allclose(normalize_peak(sound), expected, rtol=1e-6)
    assert np.abs(normalize_peak(sound)).max() == 1.0
    np.testing.assert_array_equal(normalize_peak(np.full(9, 9e-9, np.float32)), np.zeros(9))
