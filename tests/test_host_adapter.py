"""The engine in the host's own registry: `TTSVoice.load` on a bundle."""

from __future__ import annotations

import inspect
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from phoonnx.config import SynthesisConfig, VoiceConfig
from phoonnx.voice import TTSVoice

import phoonnx_llasa  # registers
from phoonnx_llasa.errors import (
    ParameterError,
    TokenizerError,
    UnknownPresetError,
    UnsupportedError,
)
from phoonnx_llasa.host.adapter import LlasaAdapter
from phoonnx_llasa.host.voice import LlasaVoice

TEXT = "Dealing with family secrets is never easy.\n\nTea?"


def config(**extra: Any) -> SynthesisConfig:
    return SynthesisConfig(extra_params={"seed": 5, "max_new_tokens": 40, **extra})


def load(folder: Path, **engine_params: Any) -> TTSVoice:
    return TTSVoice.load(
        folder / "model.onnx", folder / "config.json", engine_params=engine_params or None
    )


def speak(voice: TTSVoice, text: str, syn_config: SynthesisConfig) -> np.ndarray:
    return np.concatenate([c.audio_float_array for c in voice.synthesize(text, syn_config)])


@pytest.fixture(scope="module")
def voice(small_bundle: Path) -> TTSVoice:
    return load(small_bundle)


def test_a_bundle_loads_through_the_host_and_speaks_piece_by_piece(voice: TTSVoice) -> None:
    assert phoonnx_llasa.__version__
    assert type(voice) is TTSVoice
    assert type(voice.adapter) is LlasaAdapter
    chunks = list(voice.synthesize(TEXT, config()))
    assert ["".join(map(chr, chunk.phoneme_ids)) for chunk in chunks] == TEXT.split("\n\n")
    for chunk in chunks:
        assert chunk.sample_rate == 16000
        assert np.abs(chunk.audio_float_array).max() == pytest.approx(1.0)
        assert len(chunk.audio_float_array) % 320 == 0


def test_a_piece_sounds_as_in_the_streaming_voice_with_streaming_off(
    voice: TTSVoice, small_bundle: Path
) -> None:
    ours = LlasaVoice.from_folder(small_bundle)
    assert np.array_equal(speak(voice, "Tea?", config()), speak(ours, "Tea?", config(stream=False)))


def test_the_weights_are_those_of_the_hosts_session(voice: TTSVoice, small_bundle: Path) -> None:
    list(voice.synthesize("Tea?", config()))
    assert voice.adapter._synthesizer.language_model.session is voice.session
    other = load(small_bundle, voice="en_male_a")
    list(other.synthesize("Tea?", config()))
    assert other.session is voice.session
    assert other.adapter._synthesizer.codec.session is voice.adapter._synthesizer.codec.session


def test_paths_of_the_other_files_are_followed(small_bundle: Path, tmp_path: Path) -> None:
    for name in ("model.onnx", "model.onnx_data", "config.json"):
        shutil.copyfile(small_bundle / name, tmp_path / name)
    aux = tmp_path / "aux"
    aux.mkdir()
    paths = {
        "codec_decoder_path": shutil.copyfile(small_bundle / "xcodec2_decoder.onnx", aux / "c"),
        "tokenizer_path": shutil.copyfile(small_bundle / "tokenizer.json", aux / "t"),
        "voices_path": shutil.copyfile(small_bundle / "voices.json", aux / "v"),
    }
    voice = load(tmp_path, **{key: str(path) for key, path in paths.items()})
    expected = speak(load(small_bundle), "Tea?", config())
    assert np.array_equal(speak(voice, "Tea?", config()), expected)


def test_the_preset_is_the_calls_else_the_voices_else_the_bundles(small_bundle: Path) -> None:
    pinned = load(small_bundle, voice="en_male_a")
    free = load(small_bundle)
    male = speak(free, "Tea?", config(voice="en_male_a"))
    assert np.array_equal(speak(pinned, "Tea?", config()), male)
    assert np.array_equal(speak(pinned, "Tea?", config(voice=None)), male)
    female = speak(free, "Tea?", config(voice="en_female_a"))
    assert np.array_equal(speak(free, "Tea?", config()), female)
    assert np.array_equal(speak(pinned, "Tea?", config(voice="en_female_a")), female)
    assert not np.array_equal(male[:320], female[:320])
    with pytest.raises(UnknownPresetError, match="nobody"):
        speak(free, "Tea?", config(voice="nobody"))


def test_the_bundles_own_defaults_hold(small_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle, folder)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        re.sub(r'"inference": \{[^}]*\}', '"inference": {"temperature": 0.0}', text)
    )
    voice = load(folder)
    greedy = speak(voice, "Tea?", config(seed=1))
    assert np.array_equal(greedy, speak(voice, "Tea?", config(seed=2)))
    assert voice.adapter.default_params()["temperature"] == 0.0
    assert set(voice.adapter.param_labels()) == set(voice.adapter.default_params())
    hot = config(seed=1)
    hot.temperature = 3.0
    assert not np.array_equal(speak(voice, "Tea?", hot)[:320], greedy[:320])


def test_wrong_parameters_are_errors(voice: TTSVoice) -> None:
    with pytest.raises(ParameterError, match="'tempo' is 2"):
        speak(voice, "Tea?", config(tempo=2))
    with pytest.raises(ParameterError, match="'top_p' is 7"):
        speak(voice, "Tea?", config(top_p=7))


def test_a_clip_cannot_be_cloned(voice: TTSVoice) -> None:
    wanted = config()
    wanted.speaker_reference = (np.zeros(16000, np.float32), 16000)
    with pytest.raises(UnsupportedError, match=r"cannot clone.*en_female_a"):
        speak(voice, "Tea?", wanted)


def test_a_text_with_nothing_to_say_gives_nothing(voice: TTSVoice) -> None:
    assert list(voice.synthesize("...", config())) == []
    assert list(voice.synthesize("", config())) == []


def test_a_broken_bundle_is_reported_when_it_first_speaks(
    small_bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle, folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        speak(load(folder), "Tea?", config())


def test_a_session_alone_is_not_enough(voice: TTSVoice) -> None:
    bare = TTSVoice(
        session=voice.session, config=VoiceConfig.from_dict({"engine": "llasa"}, lang_code="en")
    )
    assert type(bare.adapter) is LlasaAdapter
    with pytest.raises(UnsupportedError, match=r"TTSVoice\.load"):
        speak(bare, "Tea?", config())


def test_one_adapter_serves_many_threads(small_bundle: Path) -> None:
    voice = load(small_bundle)
    expected = {p: speak(load(small_bundle), TEXT, config(voice=p)) for p in ("none", "zh_male_a")}
    found: list[tuple[str, np.ndarray]] = []

    def use(preset: str) -> None:
        found.append((preset, speak(voice, TEXT, config(voice=preset))))

    threads = [threading.Thread(target=use, args=(p,)) for p in [*expected, *expected]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for preset, sound in found:
        assert np.array_equal(sound, expected[preset])


def test_what_is_written_while_serving_is_declared_as_the_host_asks() -> None:
    written = {
        (name, attribute)
        for name, method in inspect.getmembers(LlasaAdapter, inspect.isfunction)
        if method.__module__ == LlasaAdapter.__module__ and name not in LlasaAdapter.SETUP_METHODS
        for attribute in re.findall(r"self\.(\w+) = ", inspect.getsource(method))
    }
    declared = {(m, a) for m, names in LlasaAdapter.MEMOIZED_WRITES.items() for a in names}
    assert written == declared


def test_warming_up_the_hosts_way_does_no_harm(small_bundle: Path) -> None:
    voice = TTSVoice.load(small_bundle / "model.onnx", small_bundle / "config.json", warmup=True)
    assert speak(voice, "Tea?", config()).size
