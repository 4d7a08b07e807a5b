"""The OVOS plugin in this process: files, cache, languages, voices, start-up, threads."""

from __future__ import annotations

import asyncio
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ovos_bus_client.message import Message
from ovos_plugin_manager.templates.tts import TTS, TTSContext
from ovos_utils.fakebus import FakeBus
from ovos_world import (
    ENDING,
    LONG,
    MANY_BLOCKS,
    TEXT,
    MakePlugin,
    NoPlayback,
    files_below,
    plugin_maker,
    samples_of,
    spoken,
    wait_until,
)

from phoonnx_llasa.errors import (
    BundleError,
    DownloadError,
    ParameterError,
    UnknownPresetError,
    UnknownVoiceError,
    UnsupportedError,
)
from phoonnx_llasa.host.opm import LlasaTTSPlugin, LlasaTTSPluginConfig
from phoonnx_llasa.host.voice import LlasaVoice


@pytest.fixture(scope="module", autouse=True)
def _loaded(small_bundle: Path) -> LlasaVoice:
    """Keeps the weights in memory from test to test."""
    return LlasaVoice.from_folder(small_bundle)


@pytest.fixture
def make_plugin(small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePlugin:
    return plugin_maker(small_bundle, tmp_path, monkeypatch)


def test_a_file_is_a_true_wav_of_what_the_voice_says(make_plugin, small_bundle, tmp_path):
    out = tmp_path / "out.wav"
    assert make_plugin().get_tts(TEXT, str(out)) == (str(out), None)
    assert samples_of(out) == spoken(small_bundle, TEXT, "en_female_a")


def test_text_with_nothing_to_speak_gives_a_true_wav_of_no_length(make_plugin, tmp_path):
    for text in ("", "...", " \n"):
        make_plugin().get_tts(text, str(tmp_path / "out.wav"))
        assert samples_of(tmp_path / "out.wav") == b""


def test_a_synthesis_that_fails_leaves_no_file_and_is_not_cached(make_plugin, tmp_path):
    plugin = make_plugin(**MANY_BLOCKS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a full disk, after 0.6 s
    try:
        with pytest.raises(OSError, match="too large"):
            plugin.synth(LONG)
        with pytest.raises(OSError, match="too large"):
            plugin.get_tts(LONG, str(tmp_path / "out.wav"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_below(tmp_path) == []
    assert len(samples_of(plugin.synth(LONG)[0])) > 20_000


def test_a_file_keeps_its_old_content_when_its_synthesis_fails(make_plugin, tmp_path):
    out = tmp_path / "out.wav"
    out.write_bytes(b"old")
    with pytest.raises(UnknownPresetError):
        make_plugin().get_tts(TEXT, str(out), voice="nobody")
    assert out.read_bytes() == b"old"


def test_a_sentence_is_spoken_once(make_plugin):
    plugin = make_plugin(**ENDING)
    first, _ = plugin.synth(TEXT)
    sound = samples_of(first)
    written = first.path.stat().st_mtime_ns
    again, phonemes = plugin.synth(TEXT)
    assert (str(again), phonemes) == (str(first), None)
    assert first.path.stat().st_mtime_ns == written
    assert samples_of(again) == sound
    ctxt = plugin._get_ctxt({})
    assert str(ctxt.get_from_cache(TEXT)[0]) == str(first)


def test_the_cache_tells_apart_what_may_sound_different(make_plugin):
    identities = {
        plugin._get_ctxt(request).tts_id
        for plugin, request in (
            (make_plugin(), {}),
            (make_plugin(), {"voice": "en_male_a"}),
            (make_plugin(), {"voice": "none"}),
            (make_plugin(), {"lang": "zh"}),
            (make_plugin(seed=4), {}),
            (make_plugin(seed=None), {}),
            (make_plugin(temperature=0.5), {}),
            (make_plugin(sampling={"top_k": 5}), {}),
            (make_plugin(lookback_codes=3), {}),
        )
    }
    assert len(identities) == 9


def test_the_cache_knows_what_sounds_the_same(make_plugin):
    wanted = make_plugin()._get_ctxt({}).tts_id
    for plugin, request in (
        (make_plugin(), {"voice": "default"}),
        (make_plugin(), {"voice": "en_female_a"}),
        (make_plugin(), {"voice": "en_female_a", "lang": "zh-CN"}),
        (make_plugin(), {"lang": "en_gb"}),
        (make_plugin(preset="en_female_a"), {}),
        (make_plugin(voice="en_female_a", sampling={"temperature": 1}, temperature=None), {}),
    ):
        assert plugin._get_ctxt(request).tts_id == wanted


def test_another_version_of_the_model_has_other_sounds(make_plugin, small_bundle, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(small_bundle, own)
    before = make_plugin(model=str(own))._get_ctxt({}).tts_id
    voices = (own / "voices.json").read_text(encoding="utf-8")
    (own / "voices.json").write_text(voices.replace("Good evening.", "Good morning."))
    assert make_plugin(model=str(own))._get_ctxt({}).tts_id != before


def test_speech_that_was_cut_off_is_tried_again_next_time(make_plugin, tmp_path):
    plugin = make_plugin(seed=None, max_new_tokens=1)
    first, _ = plugin.synth(TEXT)
    assert len(samples_of(first)) == 640
    assert len({samples_of(plugin.synth(TEXT)[0]) for _ in range(4)}) > 1
    assert list((tmp_path / "xdg").rglob("*.wav")) == []

    same_again = make_plugin(seed=3, max_new_tokens=1)
    kept, _ = same_again.synth(TEXT)
    written = kept.path.stat().st_mtime_ns
    same_again.synth(TEXT)
    assert kept.path.stat().st_mtime_ns == written


def test_voices_do_not_share_a_folder_that_outlives_ovos(make_plugin, tmp_path):
    config = {"persist_cache": True, "preloaded_cache": str(tmp_path / "kept")}
    female, _ = make_plugin(**config).synth(TEXT)
    male, _ = make_plugin(**config).synth(TEXT, voice="en_male_a")
    assert (tmp_path / "kept") in female.path.parents
    assert samples_of(female) != samples_of(male)
    TTSContext._caches.clear()  # as when OVOS starts again
    written = female.path.stat().st_mtime_ns
    assert str(make_plugin(**config).synth(TEXT)[0]) == str(female)
    assert female.path.stat().st_mtime_ns == written


def test_without_the_cache_every_request_is_spoken(make_plugin):
    plugin = make_plugin(seed=None, enable_cache=False)
    assert len({samples_of(plugin.synth(TEXT)[0]) for _ in range(3)}) > 1


def test_voices_are_listed_without_loading_them(make_plugin):
    plugin = make_plugin()
    voices = ["en_female_a", "en_male_a", "zh_female_a", "zh_male_a"]
    assert plugin.available_voices == voices
    assert plugin._choices().main._voices == {}


@pytest.mark.parametrize(
    ("config", "request_", "preset"),
    [
        ({}, {}, "en_female_a"),
        ({}, {"lang": "en-GB"}, "en_female_a"),
        ({}, {"lang": "zh-CN"}, "zh_female_a"),
        ({}, {"lang": "ZH_tw"}, "zh_female_a"),
        ({}, {"lang": "cmn"}, "zh_female_a"),
        ({"lang": "zh"}, {}, "zh_female_a"),
        ({"preset": "en_male_a"}, {}, "en_male_a"),
        ({"voice": "en_male_a"}, {"voice": "default"}, "en_male_a"),
        ({"preset": "en_male_a"}, {"lang": "zh"}, "zh_female_a"),
        ({"preset": "none"}, {"lang": "zh"}, "none"),
        ({"preset": "en_male_a"}, {"voice": "en_female_a"}, "en_female_a"),
        ({}, {"voice": "zh_male_a", "lang": "en"}, "zh_male_a"),
        ({}, {"voice": "en male a"}, "en_male_a"),
        ({}, {"voice": "zh_male_a", "lang": "fr"}, "zh_male_a"),
        ({"lang2voice": {"zh": "zh_male_a"}}, {"lang": "zh-CN"}, "zh_male_a"),
        ({"lang2voice": {"zh_CN": "zh_male_a"}}, {"lang": "zh-cn"}, "zh_male_a"),
        ({"lang2voice": {"zh-TW": "zh_male_a"}}, {"lang": "zh-CN"}, "zh_female_a"),
        ({"lang2voice": {"fr": "en_male_a"}}, {"lang": "fr-CA"}, "en_male_a"),
        ({"lang2voice": {"en": "en_male_a"}}, {"voice": "none"}, "none"),
    ],
)
def test_who_speaks(make_plugin, small_bundle, tmp_path, config, request_, preset):
    plugin = make_plugin(**config)
    plugin.get_tts(TEXT, str(tmp_path / "out.wav"), **request_)
    assert samples_of(tmp_path / "out.wav") == spoken(small_bundle, TEXT, preset)


def test_nobody_speaks_a_language_that_no_preset_has(make_plugin):
    with pytest.raises(UnsupportedError, match=r"nobody who speaks fr.*only en, zh.*lang2voice"):
        make_plugin().synth("Bonjour.", lang="fr-FR")


def test_a_wrong_voice_is_an_error_that_says_which_there_are(make_plugin):
    plugin = make_plugin()
    with pytest.raises(UnknownPresetError, match="'nobody'; available: en_female_a, en_male_a"):
        plugin.synth(TEXT, voice="nobody")
    with pytest.raises(UnknownVoiceError, match="did you mean: llasa/HKUST/en/1b"):
        plugin.synth(TEXT, voice="llasa/HKUST/en/1")
    with pytest.raises(UnsupportedError, match="no Llasa voice"):
        plugin.synth(TEXT, voice="OpenVoiceOS/pipertts_pt-PT_dii")
    samples_of(plugin.synth(TEXT)[0])


def test_a_request_cannot_name_files_or_folders(make_plugin, small_bundle, tmp_path):
    plugin = make_plugin()
    for voice in (str(small_bundle), "../../etc", "~root/x", "./x", "a\0b", "/etc/passwd"):
        with pytest.raises((UnknownPresetError, UnknownVoiceError)):
            plugin.synth(TEXT, voice=voice)
    for lang in ("../../x", "/etc", "en/../..", "a" * 100):
        with pytest.raises(ParameterError, match="language tag"):
            plugin.synth(TEXT, lang=lang)
    assert files_below(tmp_path) == []


def test_voice_ids_share_the_weights_of_one_model(make_plugin, hub_cache):
    plugin = make_plugin(model="llasa/HKUST/en/1b")
    requests = [
        plugin._request(lang, voice)
        for lang, voice in (
            ("en", None),
            ("zh", None),
            ("en", "en_male_a"),
            ("en", "llasa/HKUST/zh/1b"),
            ("en", "llasa/HKUST/zh/zh_male_a"),
        )
    ]
    assert [request.preset for request in requests] == [
        *("en_female_a", "zh_female_a", "en_male_a", "zh_female_a", "zh_male_a")
    ]
    assert len({id(request.voice().synthesizer) for request in requests}) == 1
    assert samples_of(plugin.synth(TEXT, voice="llasa/HKUST/zh/1b")[0])


def test_the_model_may_be_given_as_the_voice_as_in_the_hosts_own_plugin(make_plugin, hub_cache):
    plugin = make_plugin(model=None, voice="llasa/HKUST/zh/1b")
    assert plugin._request("zh").preset == "zh_female_a"
    assert plugin._request("en").preset == "en_female_a"


def test_without_a_configured_model_the_built_in_voice_speaks(make_plugin, demo_bundle, tmp_path):
    plugin = make_plugin(model=None, max_new_tokens=10)
    out = tmp_path / "out.wav"
    plugin.get_tts("Hello.", str(out))
    assert 0 < len(samples_of(out)) <= 10 * 640
    assert plugin._request("en").model.files().bundle.model.parent == demo_bundle
    with pytest.raises(UnsupportedError, match="llasa/demo/en/tiny has nobody who speaks zh"):
        plugin.synth("你好", lang="zh")


@pytest.mark.parametrize(
    ("data", "context", "preset"),
    [
        ({"lang": "zh-CN"}, {}, "zh_female_a"),
        ({}, {"session": {"session_id": "1", "lang": "zh-CN"}}, "zh_female_a"),
        ({"lang": "en"}, {"session": {"session_id": "1", "lang": "zh-CN"}}, "en_female_a"),
        ({}, {}, "en_female_a"),
    ],
)
def test_a_message_is_spoken_in_its_language(make_plugin, data, context, preset):
    ctxt = make_plugin()._get_ctxt({"message": Message("speak", data, context)})
    assert ctxt.voice.startswith(preset.replace("_a", ""))
    assert ctxt.lang == preset[:2]


def test_a_missing_model_is_an_error_of_the_sentence_not_of_the_start(
    make_plugin, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    plugin = make_plugin(model="llasa/HKUST/en/1b")
    assert plugin.available_voices == []
    for _ in range(2):
        with pytest.raises(DownloadError, match="phoonnx-voices download llasa/HKUST/en/1b"):
            plugin.synth(TEXT)


def test_what_is_put_in_order_later_works_with_the_next_sentence(
    make_plugin, small_bundle, tmp_path
):
    folder = tmp_path / "later"
    plugin = make_plugin(model=str(folder))
    with pytest.raises(BundleError, match="later"):
        plugin.synth(TEXT)
    shutil.copytree(small_bundle, folder)
    assert samples_of(plugin.synth(TEXT)[0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": "hot"},
        {"seed": -1},
        {"block_codes": 0},
        {"sampling": {"temprature": 1.0}},
        {"sampling": 0.5},
        {"sampling": {"voice": "en_male_a"}},
        {"lang2voice": ["zh"]},
        {"lang2voice": {"zh": 1}},
        {"preset": 7},
        {"model": 7},
        {"onnx_providers": 7},
    ],
)
def test_a_wrong_configuration_leaves_the_fallback_plugin_to_speak(make_plugin, wrong):
    plugin = make_plugin(**wrong)
    with pytest.raises(ParameterError, match="|".join(wrong) + "|temprature"):
        plugin.synth(TEXT)


def test_loading_waits_for_the_first_sentence_unless_asked_otherwise(make_plugin, small_bundle):
    lazy, eager = make_plugin(), make_plugin(preload=True)
    wait_until(lambda: eager._choices().main._voices)
    assert list(eager._choices().main._voices) == [("en_female_a", "en")]
    assert lazy._choices().main._voices == {}


def test_a_preload_that_fails_is_left_to_the_first_sentence(make_plugin, tmp_path):
    plugin = make_plugin(model=str(tmp_path / "nothing"), preload=True)
    with pytest.raises(BundleError):
        plugin.synth(TEXT)


def test_the_configurations_offered_are_good_ones():
    assert LlasaTTSPlugin.available_languages == {"en-US", "zh-CN"}
    for configs in LlasaTTSPluginConfig.values():
        for config in configs:
            assert LlasaTTSPlugin(config)._chooser is not None


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def run(index: int) -> None:
        gate.wait()
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_do_not_mix_their_voices(make_plugin, small_bundle):
    plugin = make_plugin()
    presets = ["en_female_a", "en_male_a", "zh_female_a", "zh_male_a"]
    calls = [lambda p=preset: samples_of(plugin.synth(TEXT, voice=p)[0]) for preset in presets]
    assert at_once(*calls) == [spoken(small_bundle, TEXT, preset) for preset in presets]


def test_the_same_sentence_at_the_same_time_is_spoken_once(make_plugin):
    plugin = make_plugin(**ENDING)
    sounds = at_once(*[lambda: samples_of(plugin.synth(TEXT)[0])] * 4)
    assert len(set(sounds)) == 1
    assert plugin._turns._locks == {}


def test_files_can_be_made_where_an_event_loop_runs(make_plugin, small_bundle, tmp_path):
    async def serve() -> str:
        return make_plugin().get_tts(TEXT, str(tmp_path / "out.wav"))[0]

    assert samples_of(asyncio.run(serve())) == spoken(small_bundle, TEXT, "en_female_a")


def test_a_stream_is_the_wav_in_blocks_and_the_loop_goes_on(make_plugin, small_bundle):
    plugin = make_plugin(**MANY_BLOCKS)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def collect() -> list[bytes]:
        ticking = asyncio.create_task(tick())
        chunks = [chunk async for chunk in plugin.stream_tts(LONG, voice="en_male_a")]
        ticking.cancel()
        return chunks

    header, *blocks = asyncio.run(collect())
    assert header[:4] == b"RIFF"
    assert len(header) == 44
    assert len(blocks) > 5
    assert ticks > len(blocks)
    assert b"".join(blocks) == spoken(small_bundle, LONG, "en_male_a", **MANY_BLOCKS)


def test_a_stream_that_is_left_stops_the_model(make_plugin):
    plugin = make_plugin(**MANY_BLOCKS)
    before = threading.active_count()

    async def listen_briefly() -> None:
        sound = plugin.stream_tts(LONG)
        async for chunk in sound:
            if chunk[:4] != b"RIFF":
                break
        await sound.aclose()

    begun = time.monotonic()
    asyncio.run(listen_briefly())
    wait_until(lambda: threading.active_count() <= before)
    left = time.monotonic() - begun
    begun = time.monotonic()
    plugin.synth(LONG)
    assert left < (time.monotonic() - begun) / 3


def test_generated_audio_is_a_true_wav_too(make_plugin, small_bundle, tmp_path):
    out = str(tmp_path / "out.wav")
    plugin = make_plugin()
    assert asyncio.run(plugin.generate_audio(TEXT, out, play_streaming=False)) == out
    assert samples_of(out) == spoken(small_bundle, TEXT, "en_female_a")


def test_generating_audio_that_is_cancelled_leaves_nothing(make_plugin, tmp_path):
    plugin = make_plugin(**MANY_BLOCKS)
    before = threading.active_count()

    async def change_ones_mind() -> None:
        task = asyncio.create_task(
            plugin.generate_audio(LONG, str(tmp_path / "out.wav"), play_streaming=False)
        )
        while not files_below(tmp_path):
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(change_ones_mind())
    wait_until(lambda: threading.active_count() <= before)
    assert files_below(tmp_path) == []


def test_by_default_whole_files_go_to_ovos_queue(make_plugin, small_bundle):
    plugin = make_plugin(player=["no such program"])  # not needed, so not missed
    plugin.init(FakeBus(), NoPlayback())
    message = Message("speak", {"utterance": TEXT, "lang": "zh-CN"})
    plugin.execute(TEXT, "ident", True, message=message)
    path, visemes, listen, tts_id, sent = TTS.queue.get_nowait()
    assert samples_of(path) == spoken(small_bundle, TEXT, "zh_female_a")
    assert (visemes, listen, sent) == ([], True, message)
    assert tts_id.split("/")[0] == "ovos-tts-plugin-phoonnx-llasa"
    assert TTS.queue.empty()


def test_a_plugin_that_goes_leaves_ovos_playback_alone(make_plugin):
    playback = NoPlayback()
    plugin = make_plugin()
    plugin.init(FakeBus(), playback)
    plugin.shutdown()
    del plugin
    assert not hasattr(playback, "stopped")
    other = make_plugin()
    other.init(FakeBus(), playback)
    other.stop()
    assert playback.stopped
