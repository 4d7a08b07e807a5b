"""The voice that phoonnx gets, on a small bundle of random weights."""

from __future__ import annotations

import gc
import io
import json
import shutil
import sys
import threading
import wave
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from phoonnx.config import Alphabet, SynthesisConfig
from phoonnx.model_manager import TTSModelInfo, TTSModelManager
from phoonnx.voice import PhoneticSpellings, TTSVoice

import phoonnx_llasa
from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.compact_decoder import CompactDecoder
from phoonnx_llasa.errors import (
    BundleError,
    ParameterError,
    UnknownPresetError,
    UnsupportedError,
)
from phoonnx_llasa.host.catalogue import find_voice
from phoonnx_llasa.host.shared import SynthesizerCache
from phoonnx_llasa.host.voice import LlasaChunk, LlasaVoice
from phoonnx_llasa.loudness import apply_gain, preset_gain
from phoonnx_llasa.synthesis import Synthesizer

TEXT = "Dealing with family secrets is never easy. Tea?"
#: Two pieces whatever the splitter packs: a blank line is a boundary.
TWO = "The first one.\n\nAnd another."
IDS = [
    "llasa/HKUST/en/1b",
    "llasa/HKUST/zh/1b",
    *(f"llasa/HKUST/{lang}/{lang}_{v}" for lang in ("en", "zh") for v in ("female_a", "male_a")),
]


@pytest.fixture(scope="module")
def voice(small_bundle: Path) -> LlasaVoice:
    return LlasaVoice.from_folder(small_bundle)


def config(volume: float = 1.0, *, normalize: bool = True, **extra: Any) -> SynthesisConfig:
    extra = {"seed": 5, "max_new_tokens": 60, **extra}
    return SynthesisConfig(volume=volume, normalize_audio=normalize, extra_params=extra)


def speak(voice: TTSVoice, text: str, syn_config: SynthesisConfig) -> np.ndarray:
    chunks = [chunk.audio_float_array for chunk in voice.synthesize(text, syn_config)]
    return np.concatenate([np.zeros(0, np.float32), *chunks])


@pytest.fixture(scope="module")
def long_seed(voice: LlasaVoice) -> int:
    """A seed with which the random model speaks on and on."""
    wanted = config(stream=False, temperature=1.0)
    for seed in range(1000):
        wanted.extra_params["seed"] = seed
        if len(codes_of(voice, TEXT, wanted)) == 60:
            return seed
    raise AssertionError("the model always ends early")


def codes_of(voice: TTSVoice, text: str, syn_config: SynthesisConfig) -> list[int]:
    return [code for chunk in voice.synthesize(text, syn_config) for code in chunk.phoneme_ids]


def test_sound_comes_in_blocks_that_carry_their_codes(voice: LlasaVoice, long_seed: int) -> None:
    wanted = config(first_block_codes=4, block_codes=16, seed=long_seed, temperature=1.0)
    chunks = list(voice.synthesize(TEXT, wanted))
    assert len(chunks) > 3
    for chunk in chunks:
        assert isinstance(chunk, LlasaChunk)
        assert (chunk.sample_rate, chunk.sample_width, chunk.sample_channels) == (16000, 2, 1)
        assert chunk.audio_float_array.dtype == np.float32
        assert chunk.audio_float_array.shape == (320 * len(chunk.phoneme_ids),)
        assert len(chunk.audio_int16_bytes) == 2 * 320 * len(chunk.phoneme_ids)
        assert chunk.phonemes == []
        assert chunk.phoneme_id_samples is None
        assert chunk.phoneme_alignments is None
        assert all(0 <= code < 256 for code in chunk.phoneme_ids)


def test_the_voice_says_what_the_synthesizer_says(voice: LlasaVoice) -> None:
    wanted = config()
    blocks = list(voice.synthesizer.synthesize(TEXT, voice.options(wanted)))
    chunks = list(voice.synthesize(TEXT, wanted))
    assert [list(block.codes) for block in blocks] == [chunk.phoneme_ids for chunk in chunks]
    preset = voice.synthesizer.preset(None)
    assert preset is not None
    gain = preset_gain(voice.synthesizer.preset_sound(preset))
    for block, chunk in zip(blocks, chunks, strict=True):
        assert np.array_equal(apply_gain(block.samples, gain), chunk.audio_float_array)


def test_without_streaming_each_piece_is_one_chunk_at_full_range(voice: LlasaVoice) -> None:
    chunks = list(voice.synthesize(TWO, config(stream=False)))
    assert len(chunks) == 2
    for chunk in chunks:
        assert np.abs(chunk.audio_float_array).max() == pytest.approx(1.0)
        assert len(chunk.audio_float_array) == 320 * len(chunk.phoneme_ids)


def test_streaming_and_whole_pieces_have_the_same_codes(voice: LlasaVoice) -> None:
    assert codes_of(voice, TWO, config()) == codes_of(voice, TWO, config(stream=False))


def test_silence_stands_between_pieces_and_has_no_codes(voice: LlasaVoice) -> None:
    for stream in (True, False):
        chunks = list(voice.synthesize(TWO, config(stream=stream, sentence_silence=0.25)))
        (pause,) = [chunk for chunk in chunks if not chunk.phoneme_ids]
        assert pause.audio_float_array.shape == (4000,)
        assert not pause.audio_float_array.any()


def test_volume_is_a_factor(voice: LlasaVoice) -> None:
    whole = speak(voice, TEXT, config(stream=False))
    assert np.allclose(speak(voice, TEXT, config(0.5, stream=False)), 0.5 * whole, atol=1e-6)
    plain = speak(voice, TEXT, config(normalize=False))
    assert np.allclose(speak(voice, TEXT, config(0.25, normalize=False)), 0.25 * plain, atol=1e-6)
    assert not speak(voice, TEXT, config(0.0)).any()


def test_loud_sound_stays_in_range(voice: LlasaVoice) -> None:
    for stream in (True, False):
        for normalize in (True, False):
            sound = speak(voice, TEXT, config(50.0, normalize=normalize, stream=stream))
            assert np.abs(sound).max() <= 1.0
    limited = speak(voice, TEXT, config(3.0))
    assert np.mean(np.abs(limited) == 1.0) < np.mean(
        np.abs(speak(voice, TEXT, config(3.0, stream=False))) == 1.0
    )


def test_without_normalizing_the_samples_are_the_codecs_own(voice: LlasaVoice) -> None:
    wanted = config(normalize=False)
    blocks = voice.synthesizer.synthesize(TEXT, voice.options(wanted))
    raw = np.concatenate([block.samples for block in blocks])
    assert np.array_equal(speak(voice, TEXT, wanted), np.clip(raw, -1, 1))


def test_an_invented_speaker_has_a_level_too(voice: LlasaVoice) -> None:
    assert np.abs(speak(voice, TEXT, config(voice="none"))).max() > 0.01


def test_the_settings_of_the_call_win_over_extra_params_as_in_the_host(voice: LlasaVoice) -> None:
    wanted = config(temperature=1.5, top_p=0.5)
    wanted.temperature, wanted.top_p = 0.0, 0.7
    sampling = voice.options(wanted).sampling
    assert (sampling.temperature, sampling.top_p) == (0.0, 0.7)
    assert codes_of(voice, TEXT, wanted) == codes_of(voice, TEXT, config(temperature=0, seed=9))
    assert wanted.extra_params["temperature"] == 1.5


def test_what_means_nothing_to_llasa_is_passed_over(voice: LlasaVoice) -> None:
    # What the host's OVOS plugin sends with every call.
    wanted = config()
    wanted.speaker_id, wanted.lang_id, wanted.exaggeration = 3, 1, 0.5
    wanted.length_scale, wanted.noise_scale, wanted.noise_w_scale = 1.5, 0.1, 0.2
    assert codes_of(voice, TEXT, wanted) == codes_of(voice, TEXT, config())


def test_the_hosts_config_tells_of_the_bundle(voice: LlasaVoice) -> None:
    assert isinstance(voice, TTSVoice)
    assert (voice.config.sample_rate, voice.config.hop_length) == (16000, 320)
    assert (voice.config.engine.value, voice.config.alphabet) == ("llasa", Alphabet.GRAPHEMES)
    assert voice.config.lang_code == "en"
    assert voice.config.engine_params["providers"] == ["CPUExecutionProvider"]
    assert voice.model_path is not None
    assert Path(voice.model_path).name == "model.onnx"


def test_a_voice_is_pinned_to_its_preset_and_a_call_may_take_another(small_bundle: Path) -> None:
    male = LlasaVoice.from_folder(small_bundle, preset="en_male_a")
    female = LlasaVoice.from_folder(small_bundle)
    assert (male.preset, female.preset) == ("en_male_a", None)
    wanted = codes_of(male, TEXT, config())
    assert wanted == codes_of(female, TEXT, config(voice="en_male_a"))
    assert wanted == codes_of(male, TEXT, config(voice=None))
    assert wanted == codes_of(male, TEXT, config(voice=""))
    assert wanted != codes_of(female, TEXT, config())
    assert codes_of(female, TEXT, config(voice="en_female_a")) == codes_of(female, TEXT, config())


def test_an_entrys_own_settings_are_defaults(small_bundle: Path) -> None:
    params = {"voice": "zh_female_a", "top_k": 3, "codec_decoder_path": "x", "made_up": 1}
    voice = LlasaVoice.from_bundle(open_bundle(small_bundle), params)
    assert voice.options().sampling.top_k == 3
    assert voice.options(config(top_k=9)).sampling.top_k == 9
    with pytest.raises(ParameterError, match="top_k"):
        LlasaVoice.from_bundle(open_bundle(small_bundle), {"top_k": "many"})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"voice": "nobody"}, "unknown voice preset 'nobody'; available: en_female_a, en_male_a"),
        ({"tempo": 2}, "parameter 'tempo' is 2; allowed: one of voice, seed"),
        ({"temperature": -1}, "parameter 'temperature' is -1"),
        ({"block_codes": 0}, "parameter 'block_codes' is 0"),
        ({"stream": "yes"}, "parameter 'stream' is 'yes'"),
    ],
)
def test_wrong_parameters_raise_at_the_call(
    voice: LlasaVoice, extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        voice.synthesize(TEXT, SynthesisConfig(extra_params=extra))
    assert speak(voice, "Fine.", config()).size


@pytest.mark.parametrize("text", [None, b"bytes", 3, "x" * 200_000])
def test_a_text_that_is_none_raises_at_the_call(voice: LlasaVoice, text: Any) -> None:
    with pytest.raises(ParameterError, match="text"):
        voice.synthesize(text)


def test_a_preset_that_does_not_exist_is_no_voice(small_bundle: Path) -> None:
    with pytest.raises(UnknownPresetError, match="nobody"):
        LlasaVoice.from_folder(small_bundle, preset="nobody")


def test_a_clip_cannot_be_cloned_and_the_answer_names_the_presets(voice: LlasaVoice) -> None:
    wanted = SynthesisConfig(speaker_reference="clip.wav")
    with pytest.raises(UnsupportedError, match=r"cannot clone.*en_female_a, en_male_a, zh_"):
        voice.synthesize(TEXT, wanted)


def test_only_plain_text_is_read(voice: LlasaVoice) -> None:
    for alphabet in (Alphabet.IPA, Alphabet.ARPA):
        with pytest.raises(UnsupportedError, match=f"plain text, not {alphabet.value}"):
            voice.synthesize(TEXT, SynthesisConfig(alphabet=alphabet))
    for alphabet in (None, Alphabet.GRAPHEMES, Alphabet.UNICODE):
        wanted = config()
        wanted.alphabet = alphabet
        assert codes_of(voice, TEXT, wanted) == codes_of(voice, TEXT, config())


def test_alignments_are_quietly_not_there(voice: LlasaVoice) -> None:
    (chunk, *_) = voice.synthesize("Tea?", config(), include_alignments=True)
    assert chunk.phoneme_alignments is None
    assert voice._ensure_alignment_session() is None


def test_phonetic_spellings_are_applied_as_in_the_host(small_bundle: Path) -> None:
    voice = LlasaVoice.from_folder(small_bundle)
    voice.phonetic_spellings = PhoneticSpellings({"OVOS": "Oh Voss"})
    wanted = config()
    assert codes_of(voice, "I am ovos.", wanted) == codes_of(voice, "I am Oh Voss.", wanted)
    wanted.enable_phonetic_spellings = False
    assert codes_of(voice, "I am ovos.", wanted) != codes_of(voice, "I am Oh Voss.", wanted)


def test_the_languages_own_spellings_are_loaded(voice: LlasaVoice) -> None:
    assert voice.phonetic_spellings is not None
    assert voice.phonetic_spellings.apply("OpenVoiceOS") == "Open Voice O S"


def test_diacritics_are_added_where_the_host_would(
    voice: LlasaVoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diacritize(text: str, lang: str, diacritizer_model: str | None = None) -> str:
        return text.replace("a", "á") + f" {lang} {diacritizer_model}"

    monkeypatch.setattr("scriptconv.diacritics.diacritize", diacritize)
    wanted = config()
    wanted.add_diacritics, wanted.diacritizer_model = True, "m"
    assert codes_of(voice, "A cat.", wanted) == codes_of(voice, "A cát. en m", config())
    assert codes_of(voice, "A cat.", config()) != codes_of(voice, "A cát. en m", config())


class FakeUpscaler:
    def upscale(self, audio: np.ndarray, rate: int) -> tuple[np.ndarray, int]:
        return np.repeat(audio, 3), 3 * rate


@contextmanager
def upscaler(voice: LlasaVoice) -> Iterator[SynthesisConfig]:
    """The voice with a super-resolution engine loaded, as the host leaves it."""
    voice._sr_engine, voice._sr_loaded = FakeUpscaler(), True
    wanted = config(sentence_silence=0.1)
    wanted.super_resolution = True
    yield wanted


def test_super_resolution_works_on_whole_pieces(small_bundle: Path) -> None:
    voice = LlasaVoice.from_folder(small_bundle)
    expected = list(voice.synthesize(TWO, config(stream=False, sentence_silence=0.1)))
    with upscaler(voice) as wanted:
        chunks = list(voice.synthesize(TWO, wanted))
    assert [chunk.sample_rate for chunk in chunks] == [48000] * 3
    for chunk, plain in zip(chunks, expected, strict=True):
        assert np.array_equal(chunk.audio_float_array, np.repeat(plain.audio_float_array, 3))
    assert chunks[1].audio_float_array.shape == (4800,)


def test_voice_conversion_works_on_whole_pieces_however_short(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    converted: list[int] = []

    class VoiceCloner:
        sample_rate = 24000

        def __init__(self, engine: str) -> None:
            assert engine == "knnvc"

        def clone_voice(self, source: str, reference: str, target: str) -> None:
            with wave.open(source) as file:
                assert file.getframerate() == 16000
                frames = file.readframes(file.getnframes())
            converted.append(len(frames) // 2)
            with wave.open(target, "wb") as file:
                file.setparams((1, 2, 24000, 0, "NONE", ""))
                file.writeframes(np.repeat(np.frombuffer(frames, "<i2"), 3)[::2].tobytes())

    module = ModuleType("voiceclonnx")
    module.VoiceCloner = VoiceCloner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "voiceclonnx", module)
    reference = (np.linspace(-0.5, 0.5, 16000, dtype=np.float32), 16000)
    voice = LlasaVoice.from_folder(small_bundle)
    wanted = config(max_new_tokens=3)
    wanted.vc_reference, wanted.vc_engine = reference, "knnvc"
    chunks = list(voice.synthesize(TWO, wanted))
    assert converted == [4800, 4800]  # 0.3 s, which the host asks for; three codes are 0.06 s
    assert [chunk.sample_rate for chunk in chunks] == [24000, 24000]
    assert [len(chunk.phoneme_ids) for chunk in chunks] == [3, 3]


def test_a_feature_that_is_not_installed_raises_at_the_call(voice: LlasaVoice) -> None:
    with pytest.raises(ImportError, match="audiosronnx"):
        voice.synthesize(TEXT, SynthesisConfig(super_resolution=True))
    with pytest.raises(FileNotFoundError, match=r"nothing\.wav"):
        voice.synthesize(TEXT, SynthesisConfig(vc_reference="nothing.wav"))


def wav(voice: TTSVoice, text: str, syn_config: SynthesisConfig) -> tuple[Any, bytes]:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        voice.synthesize_wav(text, file, syn_config)
    with wave.open(io.BytesIO(target.getvalue())) as file:
        return file.getparams(), file.readframes(file.getnframes())


def test_a_wav_file_holds_what_was_streamed(voice: LlasaVoice) -> None:
    params, frames = wav(voice, TEXT, config())
    assert (params.nchannels, params.sampwidth, params.framerate) == (1, 2, 16000)
    expected = b"".join(chunk.audio_int16_bytes for chunk in voice.synthesize(TEXT, config()))
    assert frames == expected
    assert params.nframes == 320 * len(codes_of(voice, TEXT, config()))


@pytest.mark.parametrize("text", ["", "  \n ", "?!…", "。。。", "\u200b"])
def test_a_text_with_nothing_to_say_is_an_empty_valid_wav(voice: LlasaVoice, text: str) -> None:
    for stream in (True, False):
        params, frames = wav(voice, text, config(stream=stream))
        assert (params.nchannels, params.sampwidth, params.framerate) == (1, 2, 16000)
        assert frames == b""


def test_a_wav_of_another_rate_says_so(small_bundle: Path) -> None:
    voice = LlasaVoice.from_folder(small_bundle)
    with upscaler(voice) as wanted:
        params, _ = wav(voice, TWO, wanted)
    codes = codes_of(voice, TWO, config())
    assert (params.framerate, params.nframes) == (48000, 3 * (320 * len(codes) + 1600))


def test_a_cut_piece_says_so_on_its_last_chunk(voice: LlasaVoice, long_seed: int) -> None:
    wanted = config(first_block_codes=4, seed=long_seed, temperature=1.0)
    chunks = list(voice.synthesize(TEXT, wanted))
    assert len(chunks) > 1
    assert [chunk.truncated for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_the_model_is_never_ahead_of_the_listener_and_closing_stops_it(
    voice: LlasaVoice, long_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    feed = CompactDecoder.feed

    def counting(self: CompactDecoder, ids: Any) -> Any:
        steps.append(len(ids))
        return feed(self, ids)

    monkeypatch.setattr(CompactDecoder, "feed", counting)
    wanted = config(first_block_codes=4, lookahead_codes=2, seed=long_seed, temperature=1.0)
    stream = voice.synthesize(TEXT, wanted)
    assert steps == []
    assert len(next(stream).phoneme_ids) == 4
    done = len(steps)
    assert done <= 2 + 4 + 2  # the prompt in two parts, then a step for each code
    stream.close()  # type: ignore[attr-defined]
    assert list(stream) == []
    assert len(steps) == done
    never_started = voice.synthesize(TEXT, config())
    never_started.close()  # type: ignore[attr-defined]
    assert len(steps) == done


def test_a_stream_that_nobody_holds_stops_by_itself(voice: LlasaVoice) -> None:
    stream = voice.synthesize(TEXT, config())
    next(stream)
    blocks = weakref.ref(stream.gi_frame.f_locals["blocks"])  # type: ignore[attr-defined]
    del stream
    assert blocks() is None


def test_the_same_seed_gives_the_same_bytes_in_threads(voice: LlasaVoice) -> None:
    expected = speak(voice, TWO, config()).tobytes()
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(speak(voice, TWO, config()).tobytes()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_all_presets_and_languages_share_one_session(hub_cache: Path, tmp_path: Path) -> None:
    manager = TTSModelManager(str(tmp_path / "voices.json"))
    voices = [manager.load_voice(voice_id) for voice_id in IDS]
    assert all(type(voice) is LlasaVoice for voice in voices)
    assert len({id(voice.synthesizer) for voice in voices}) == 1
    assert len({id(voice.session) for voice in voices}) == 1
    assert [voice.preset for voice in voices] == [
        "en_female_a", "zh_female_a", "en_female_a", "en_male_a", "zh_female_a", "zh_male_a",
    ]  # fmt: skip
    assert [voice.config.lang_code for voice in voices] == [
        "en-US", "zh-CN", "en-US", "en-US", "zh-CN", "zh-CN",
    ]  # fmt: skip


def test_loading_twice_at_once_loads_once(small_bundle: Path) -> None:
    loads: list[Path] = []
    barrier = threading.Barrier(6)

    def load(bundle: Any, *, providers: Any) -> Synthesizer:
        loads.append(bundle.model)
        return Synthesizer.open(bundle, providers=providers)

    cache = SynthesizerCache(load)
    found: list[Synthesizer] = []

    def use() -> None:
        barrier.wait()
        bundle = open_bundle(small_bundle)
        found.append(cache.get(bundle, providers=["CPUExecutionProvider"]))

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len(found) == 6
    assert len({id(synthesizer) for synthesizer in found}) == 1


def test_a_failed_load_is_tried_again(small_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle, folder)
    codec = (folder / "xcodec2_decoder.onnx").read_bytes()
    (folder / "xcodec2_decoder.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"xcodec2_decoder\.onnx"):
        LlasaVoice.from_folder(folder)
    (folder / "xcodec2_decoder.onnx").write_bytes(codec)
    assert speak(LlasaVoice.from_folder(folder), "Tea?", config()).size


def test_changed_files_and_other_providers_are_other_models(
    small_bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle, folder)
    voice = LlasaVoice.from_folder(folder)
    assert LlasaVoice.from_folder(folder).synthesizer is voice.synthesizer
    assert LlasaVoice.from_folder(small_bundle).synthesizer is not voice.synthesizer
    other = LlasaVoice.from_folder(folder, providers=[("CPUExecutionProvider", {})])
    assert other.synthesizer is not voice.synthesizer
    voices = json.loads((folder / "voices.json").read_text())
    voices["presets"]["new"] = voices["presets"]["en_male_a"]
    (folder / "voices.json").write_text(json.dumps(voices))
    assert LlasaVoice.from_folder(folder, preset="new").preset == "new"
    with pytest.raises(UnknownPresetError):
        list(voice.synthesize("Tea?", config(voice="new")))


def test_a_provider_that_does_not_start_is_reported(
    small_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        SynthesizerCache().get(open_bundle(small_bundle), providers=wanted)
    assert "CUDAExecutionProvider does not work here; running on CPUExecutionProvider" in (
        caplog.text
    )


def test_the_weights_go_with_the_last_voice(small_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle, folder)
    voices = [LlasaVoice.from_folder(folder, preset=p) for p in ("en_male_a", "zh_male_a")]
    synthesizer = weakref.ref(voices[0].synthesizer)
    stream = voices[0].synthesize("Tea?", config(first_block_codes=2, lookahead_codes=0))
    next(stream)
    gc.disable()  # a budget cannot wait for the collector: there must be no cycle
    try:
        voices.clear()
        while_listening = synthesizer() is not None
        rest = list(stream)
        del stream
        afterwards = synthesizer() is not None
    finally:
        gc.enable()
    assert rest
    assert (while_listening, afterwards) == (True, False)


def test_warming_up_decodes_the_preset_and_says_nothing(
    small_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voice = LlasaVoice.from_folder(small_bundle)
    with caplog.at_level("INFO"):
        voice.warmup()
    assert caplog.records == []


def test_the_inherited_way_through_ids_works(voice: LlasaVoice) -> None:
    wanted = config(stream=False)
    wanted.normalize_audio = False
    ids = voice.adapter.encode_text("Tea?", voice, wanted)
    assert ids == [[ord(character) for character in "Tea?"]]
    audio = voice.phoneme_ids_to_audio(ids[0], wanted)
    assert np.array_equal(np.clip(audio, -1, 1), speak(voice, "Tea?", wanted))


def test_an_entry_that_names_no_engine_is_read_from_its_config(
    hub_cache: Path, tmp_path: Path
) -> None:
    manager = TTSModelManager(str(tmp_path / "voices.json"))
    fields = find_voice(manager, IDS[0]).to_dict() | {"engine": None}
    assert type(TTSModelInfo(**fields).load()) is LlasaVoice


def test_a_broken_entry_leaves_the_others_alone(hub_cache: Path, tmp_path: Path) -> None:
    manager = TTSModelManager(str(tmp_path / "voices.json"))
    fields = find_voice(manager, IDS[0]).to_dict()
    fields |= {"voice_id": "my/voice", "engine_options": {"voice": "nobody"}}
    manager.add_voice(TTSModelInfo(**fields))
    with pytest.raises(UnknownPresetError, match="nobody"):
        manager.load_voice("my/voice")
    assert speak(manager.load_voice(IDS[0]), "Tea?", config()).size


def test_the_public_face_has_the_voice() -> None:
    assert phoonnx_llasa.LlasaVoice is LlasaVoice


@pytest.mark.parametrize("damage", ["codes", "name"])
def test_a_broken_default_preset_does_not_take_the_others_down(
    small_bundle: Path, tmp_path: Path, damage: str
) -> None:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    voices = json.loads((folder / "voices.json").read_text(encoding="utf-8"))
    if damage == "codes":
        voices["presets"][voices["default_voice"]]["codes"] = [-1]
    else:
        voices["default_voice"] = "zz"
    (folder / "voices.json").write_text(json.dumps(voices))
    voice = LlasaVoice.from_folder(folder)
    with pytest.raises(UnknownPresetError):
        voice.synthesize("Hello.")
    assert list(voice.synthesize("Hello.", config(voice="en_male_a", max_new_tokens=20)))


@pytest.mark.parametrize("volume", [float("nan"), float("inf"), -1.0])
def test_a_volume_that_is_none_is_refused(voice: LlasaVoice, volume: float) -> None:
    with pytest.raises(ParameterError, match="volume"):
        voice.synthesize("Hello.", SynthesisConfig(volume=volume))
