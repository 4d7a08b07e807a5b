"""What the tests of the OVOS plugin share: plugins in a world of their own, and a player."""

from __future__ import annotations

import sys
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ovos_plugin_manager.templates.tts import TTS, TTSContext
from ovos_plugin_manager.utils import tts_cache
from phoonnx.config import SynthesisConfig

from phoonnx_llasa.host.opm import LlasaTTSPlugin
from phoonnx_llasa.host.voice import LlasaVoice

TEXT = "The wind has turned."
LONG = " ".join([TEXT] * 12)
#: Twelve pieces in many blocks.
MANY_BLOCKS = {
    "max_chunk_chars": 25,
    "max_new_tokens": 60,
    "first_block_codes": 5,
    "block_codes": 10,
    "lookback_codes": 10,
}
#: The random model hardly ever ends by itself.
SHORT = {"max_new_tokens": 40, "temperature": 1.0}
#: The built-in voice, which does.
ENDING = {"model": None, "seed": None, "max_new_tokens": None, "temperature": 0.5}

MakePlugin = Callable[..., LlasaTTSPlugin]


def plugin_maker(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePlugin:
    """Makes plugins that speak a bundle; OVOS's caches are in the test's folder."""
    monkeypatch.setattr(tts_cache, "get_tmp_cache_dir", lambda name: str(tmp_path / "tmp" / name))
    monkeypatch.setattr(tts_cache, "get_xdg_cache_save_path", lambda: str(tmp_path / "xdg"))
    monkeypatch.setattr(TTSContext, "_caches", {})
    monkeypatch.setattr(TTS, "queue", None)
    monkeypatch.setattr(TTS, "playback", None)

    def make(**config: Any) -> LlasaTTSPlugin:
        given = {"model": str(bundle), "lang": "en-US", "seed": 3} | SHORT | config
        plugin = LlasaTTSPlugin({k: v for k, v in given.items() if v is not None})
        plugin._plugin_id = "ovos-tts-plugin-phoonnx-llasa"
        return plugin

    return make


def samples_of(path: object) -> bytes:
    """The samples of a WAV whose header says truly how many there are."""
    raw = Path(str(path)).read_bytes()
    assert int.from_bytes(raw[4:8], "little") == len(raw) - 8
    assert int.from_bytes(raw[40:44], "little") == len(raw) - 44
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        return file.readframes(file.getnframes())


def spoken(bundle: Path, text: str, preset: str, **params: Any) -> bytes:
    voice = LlasaVoice.from_folder(bundle)
    config = SynthesisConfig(extra_params={"seed": 3, "voice": preset} | SHORT | params)
    return b"".join(chunk.audio_int16_bytes for chunk in voice.synthesize(text, config))


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class NoPlayback:
    """Stands for ovos-audio's thread, which has tests of its own."""

    enclosure = True
    _now_playing: object = None

    def set_bus(self, bus: Any) -> None:
        pass

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None:
        self.stopped = True


TAIL = bytes(2 * 1600)

#: Writes what it hears into OUT.sound, and when into OUT.times: nanoseconds and bytes.
_RECORDER = """\
import os, sys, time
out, mode = sys.argv[1:3]
open(out + ".begun", "w").write(str(time.time_ns()))
while mode == "deaf" and not os.path.exists(out + ".listen"):
    time.sleep(0.01)
with open(out + ".sound", "ab", 0) as sound, open(out + ".times", "a", 1) as times:
    while chunk := os.read(0, 1 << 16):
        times.write(f"{time.time_ns()} {len(chunk)}\\n")
        sound.write(chunk)
        if mode == "fails":
            sys.exit("cannot open audio device default")
open(out + ".ended", "w").write(str(time.time_ns()))
"""


@dataclass
class FakePlayer:
    """A program that records instead of playing, into an empty folder."""

    folder: Path

    def command(self, *, mode: str = "hears", raw: bool = True) -> list[str]:
        script = self.folder / "player.py"
        script.write_text(_RECORDER)
        # the rate is an argument that nobody reads
        last = ["{rate}"] if raw else []
        return [sys.executable, "-S", "-E", str(script), str(self.folder / "player"), mode, *last]

    def path(self, ending: str) -> Path:
        return self.folder / f"player.{ending}"

    def sound(self) -> bytes:
        """What was heard, without the silence that follows each sentence of bare samples."""
        return self.path("sound").read_bytes().removesuffix(TAIL)

    def first_heard(self) -> int:
        """Nanoseconds of the clock."""
        return int(self.path("times").read_text().split()[0])

    def forget(self) -> None:
        for path in self.folder.glob("player.*"):
            if path.suffix != ".py":
                path.unlink()


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
