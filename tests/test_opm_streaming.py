"""The OVOS plugin with `enable_streaming`: into a player, with OVOS's events, while it speaks."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ovos_bus_client.message import Message
from ovos_plugin_manager.templates.tts import TTS
from ovos_utils.fakebus import FakeBus
from ovos_world import (
    LONG,
    MANY_BLOCKS,
    TAIL,
    TEXT,
    FakePlayer,
    MakePlugin,
    NoPlayback,
    files_below,
    plugin_maker,
    samples_of,
    spoken,
    wait_until,
)

from phoonnx_llasa.errors import GraphError, ParameterError, PlaybackError, UnknownPresetError
from phoonnx_llasa.host import opm
from phoonnx_llasa.host.opm import LlasaTTSPlugin
from phoonnx_llasa.host.playback import KNOWN_PLAYERS, Player, find_player
from phoonnx_llasa.host.voice import LlasaVoice
from phoonnx_llasa.wav import wav_header

START = ["ovos.common_play.duck", "recognizer_loop:audio_output_start"]
END = ["ovos.common_play.unduck", "recognizer_loop:audio_output_end"]


class Events:
    """What is said on a bus."""

    def __init__(self) -> None:
        self.bus = FakeBus()
        self.messages: list[Message] = []
        self.bus.on("message", lambda text: self.messages.append(Message(**_fields(text))))

    @property
    def types(self) -> list[str]:
        return [message.msg_type for message in self.messages]


def _fields(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    return {"msg_type": fields["type"], "data": fields["data"], "context": fields["context"]}


@pytest.fixture(scope="module", autouse=True)
def _loaded(small_bundle: Path) -> LlasaVoice:
    """Keeps the weights in memory from test to test."""
    return LlasaVoice.from_folder(small_bundle)


@pytest.fixture
def make_plugin(small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePlugin:
    return plugin_maker(small_bundle, tmp_path, monkeypatch)


@pytest.fixture
def player(tmp_path: Path) -> FakePlayer:
    folder = tmp_path / "player"
    folder.mkdir()
    return FakePlayer(folder)


@pytest.fixture
def events() -> Events:
    return Events()


def streaming(make_plugin: Any, events: Events, command: Any, **config: Any) -> LlasaTTSPlugin:
    plugin = make_plugin(enable_streaming=True, player=command, **config)
    plugin.init(events.bus, NoPlayback())
    return plugin


def cached(plugin: LlasaTTSPlugin, text: str) -> Path:
    return Path(str(plugin._get_ctxt({}).get_from_cache(text)[0]))


def test_the_first_words_are_heard_while_the_rest_is_made(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command(), **MANY_BLOCKS)
    plugin.execute(LONG)
    file = cached(plugin, LONG)
    assert player.first_heard() < file.stat().st_mtime_ns
    assert len(player.path("times").read_text().splitlines()) > 5
    assert player.sound() == samples_of(file)
    assert events.types == START + END
    assert TTS.queue.empty()


def test_a_player_that_asks_for_no_rate_gets_a_wav(make_plugin, events, player, small_bundle):
    plugin = streaming(make_plugin, events, player.command(raw=False))
    plugin.execute(TEXT)
    sound = spoken(small_bundle, TEXT, "en_female_a")
    assert player.sound() == wav_header(16000, None) + sound
    assert samples_of(cached(plugin, TEXT)) == sound


def test_a_finished_stream_is_in_the_cache(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command())
    plugin.execute(TEXT)
    heard, written = player.sound(), cached(plugin, TEXT).stat().st_mtime_ns
    player.forget()
    plugin.execute(TEXT)
    assert player.sound() == heard
    assert cached(plugin, TEXT).stat().st_mtime_ns == written
    assert events.types == 2 * (START + END)
    assert str(plugin.synth(TEXT)[0]) == str(cached(plugin, TEXT))
    # whole files in the ordinary way come from the same cache
    other = make_plugin()
    assert str(other.synth(TEXT)[0]) == str(cached(plugin, TEXT))


def test_events_carry_the_message_that_is_spoken(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command())
    context = {"session": {"session_id": "abc", "lang": "zh-CN"}, "skill_id": "weather"}
    message = Message("speak", {"utterance": TEXT}, context)
    for _ in range(2):
        plugin.execute(TEXT, "abc", listen=True, message=message)
    assert events.types == 2 * [*START, *END, "mycroft.mic.listen"]
    for said in events.messages:
        assert said.context["skill_id"] == "weather"
        assert said.context["session"]["session_id"] == "abc"


def test_with_pulse_duck_other_sound_is_left_to_the_sound_server(make_plugin, events, player):
    streaming(make_plugin, events, player.command(), pulse_duck=True).execute(TEXT)
    assert events.types == [START[1], END[1]]


@pytest.mark.parametrize("event", ["mycroft.stop", "mycroft.audio.speech.stop"])
def test_stop_silences_a_stream_and_keeps_nothing(make_plugin, events, player, tmp_path, event):
    plugin = streaming(make_plugin, events, player.command(), **MANY_BLOCKS)
    speaking = threading.Thread(
        daemon=True, target=plugin.execute, args=(LONG,), kwargs={"listen": True}
    )
    speaking.start()
    wait_until(lambda: player.path("sound").exists() and player.sound())
    events.bus.emit(Message(event))
    speaking.join(30)
    assert not speaking.is_alive()
    assert not player.path("ended").exists()
    assert files_below(tmp_path / "tmp") == files_below(tmp_path / "xdg") == []
    assert [kind for kind in events.types if kind != "mycroft.stop.handled"] == [
        *START,
        event,
        *END,
    ]
    (handled,) = [said for said in events.messages if said.msg_type == "mycroft.stop.handled"]
    assert handled.data == {"by": "TTS"}

    player.forget()
    plugin.execute(TEXT)
    assert player.sound() == samples_of(cached(plugin, TEXT))


def test_stop_after_everything_was_made_silences_the_player(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command(mode="deaf"))
    speaking = threading.Thread(
        daemon=True, target=plugin.execute, args=(TEXT,), kwargs={"listen": True}
    )
    speaking.start()
    ctxt = plugin._get_ctxt({})
    wait_until(lambda: len(plugin._cache(ctxt).cached_sentences))
    events.bus.emit(Message("mycroft.stop"))
    speaking.join(30)
    assert not speaking.is_alive()
    assert sorted(events.types) == sorted([*START, "mycroft.stop", "mycroft.stop.handled", *END])
    assert samples_of(cached(plugin, TEXT))


def test_stop_while_nothing_is_streamed_is_left_to_ovos(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command())
    events.bus.emit(Message("mycroft.stop"))
    assert plugin.stop_streaming() is False
    plugin.shutdown()
    assert events.types == ["mycroft.stop"]


def test_a_slow_player_does_not_hold_up_the_model(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command(mode="deaf"), **MANY_BLOCKS)
    speaking = threading.Thread(daemon=True, target=plugin.execute, args=(LONG,))
    speaking.start()
    ctxt = plugin._get_ctxt({})
    wait_until(lambda: len(plugin._cache(ctxt).cached_sentences))
    assert not player.path("sound").exists()
    assert events.types == START
    player.path("listen").touch()
    speaking.join(30)
    sound = samples_of(cached(plugin, LONG))
    assert len(sound) > 1 << 16  # more than a pipe holds
    assert player.sound() == sound
    assert events.types == START + END


def test_a_player_that_fails_is_an_error_and_keeps_nothing(make_plugin, events, player, tmp_path):
    plugin = streaming(make_plugin, events, player.command(mode="fails"), **MANY_BLOCKS)
    with pytest.raises(PlaybackError, match=r"code 1 before everything.*cannot open audio device"):
        plugin.execute(LONG, listen=True)
    assert files_below(tmp_path / "tmp") == files_below(tmp_path / "xdg") == []
    assert events.types == START + END
    assert not plugin._speaking.locked()


def test_a_sentence_that_cannot_be_spoken_is_not_announced(
    make_plugin, events, player, small_bundle, tmp_path
):
    broken = tmp_path / "broken"
    shutil.copytree(small_bundle, broken)
    (broken / "xcodec2_decoder.onnx").write_bytes(b"no graph")
    for error, config in (
        (UnknownPresetError, {"preset": "nobody"}),
        (GraphError, {"model": str(broken)}),
    ):
        plugin = streaming(make_plugin, events, player.command(), **config)
        with pytest.raises(error):
            plugin.execute(TEXT)
    plugin = streaming(make_plugin, events, player.command())
    with pytest.raises(ParameterError, match="100000 characters"):
        plugin.execute(TEXT * 10_000)
    assert events.types == []
    assert not player.path("begun").exists()


def test_sentences_are_heard_one_after_the_other(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command())
    texts = [f"{TEXT} {number}." for number in range(3)]
    threads = [threading.Thread(daemon=True, target=plugin.execute, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events.types == 3 * (START + END)
    sounds = [samples_of(cached(plugin, text)) for text in texts]
    heard = player.path("sound").read_bytes()
    assert len(heard) == sum(len(sound + TAIL) for sound in sounds)
    assert all(sound + TAIL in heard for sound in sounds)


def test_what_ovos_plays_already_is_heard_out_first(make_plugin, events, player):
    plugin = streaming(make_plugin, events, player.command())
    plugin.synth(TEXT)
    TTS.playback._now_playing = ("chime.wav",)
    speaking = threading.Thread(daemon=True, target=plugin.execute, args=(TEXT,))
    speaking.start()
    speaking.join(0.3)
    assert events.types == []
    TTS.playback._now_playing = None
    speaking.join(30)
    assert events.types == START + END


def test_streams_can_go_elsewhere(make_plugin, events, small_bundle):
    class Elsewhere:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def stream_start(self, message: Any = None) -> None:
            self.got.append("start")

        def stream_chunk(self, chunk: bytes) -> None:
            self.got.append(chunk)

        def stream_stop(self, listen: bool = False, message: Any = None) -> None:
            self.got.append(("stop", listen))

    plugin = make_plugin(enable_streaming=True)
    elsewhere = Elsewhere()
    plugin.init(events.bus, NoPlayback(), elsewhere)
    plugin.execute(TEXT, listen=True)
    start, header, *blocks, stop = elsewhere.got
    assert (start, header, stop) == ("start", wav_header(16000, None), ("stop", True))
    assert b"".join(blocks) == spoken(small_bundle, TEXT, "en_female_a")


def test_generated_audio_can_be_played_too(make_plugin, events, player, tmp_path):
    plugin = streaming(make_plugin, events, player.command())
    out = str(tmp_path / "out.wav")
    asyncio.run(plugin.generate_audio(TEXT, out, plugin_kwargs={"voice": "en_male_a"}))
    assert player.sound() == samples_of(out)
    assert events.types == START + END


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the plugin logs as errors; OVOS's log has no other way to be read."""
    said: list[str] = []
    monkeypatch.setattr(opm.LOG, "error", said.append)
    return said


def test_without_a_player_sentences_are_played_whole(make_plugin, events, monkeypatch, complaints):
    monkeypatch.setenv("PATH", "/nowhere")
    plugin = streaming(make_plugin, events, None)
    (said,) = complaints
    assert "no ffplay, paplay or aplay" in said
    plugin.execute(TEXT)
    assert samples_of(TTS.queue.get_nowait()[0])


@pytest.mark.parametrize("command", ["no-such-player -x", ["no-such-player"], 7, [], [1]])
def test_a_player_that_does_not_exist_is_named(make_plugin, events, command, complaints):
    plugin = streaming(make_plugin, events, command)
    (said,) = complaints
    assert "played when it is whole" in said
    assert "no-such-player: is not installed" in said or "'player' is" in said
    plugin.execute(TEXT)
    assert samples_of(TTS.queue.get_nowait()[0])


@pytest.mark.parametrize("number", range(len(KNOWN_PLAYERS)))
def test_known_players_are_told_the_format(make_plugin, events, tmp_path, monkeypatch, number):
    name, *arguments = KNOWN_PLAYERS[number]
    programs = tmp_path / "bin"
    programs.mkdir()
    # a program of that name that writes its arguments and what it hears
    (programs / name).write_text(
        f"#!{sys.executable} -SE\nimport sys\n"
        f"open({str(tmp_path / 'arguments')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        f"open({str(tmp_path / 'heard')!r}, 'wb').write(sys.stdin.buffer.read())\n"
    )
    (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    plugin = streaming(make_plugin, events, None)
    plugin.execute(TEXT)
    assert (tmp_path / "arguments").read_text() == " ".join(arguments).replace("{rate}", "16000")
    assert (tmp_path / "heard").read_bytes() == samples_of(cached(plugin, TEXT)) + TAIL


def test_a_command_may_be_one_line(player):
    line = " ".join(player.command())
    assert find_player(line) == player.command()


def test_a_player_that_closes_its_ears_is_an_error():
    command = [sys.executable, "-S", "-c", "import os, time; os.close(0); time.sleep(60)"]
    player = Player(command)

    def write_on() -> None:
        while True:
            player.write(bytes(1 << 16))

    with pytest.raises(PlaybackError, match="before everything was played"):
        write_on()


def test_a_player_that_will_not_end_is_ended(player: FakePlayer):
    deaf = Player(player.command(mode="deaf"))
    deaf.write(b"1234")
    wait_until(player.path("begun").exists)
    threading.Timer(0.2, deaf.stop).start()
    deaf.finish()
