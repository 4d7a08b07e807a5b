"""What a user types, in fresh interpreters, against a hub cache in the hub's real layout."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import wave
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SNIPPET = """\
from phoonnx.model_manager import TTSModelManager
from phoonnx.config import SynthesisConfig
voice = TTSModelManager().load_voice("llasa/HKUST/en/1b")
audio = b"".join(c.audio_int16_bytes for c in voice.synthesize(
    "Dealing with family secrets is never easy.",
    syn_config=SynthesisConfig(extra_params={"voice": "en_female_a"})))
"""
OURS = ["llasa/HKUST/en/1b", "llasa/HKUST/zh/1b", "llasa/demo/en/tiny"]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which this package is installed, whatever the one of the tests has."""
    folder = tmp_path_factory.mktemp("installation")
    site = folder / "site"
    site.mkdir()
    for name in ("phoonnx_llasa", *(f"phoonnx_llasa_autoload.{x}" for x in ("py", "pth", "start"))):
        (site / name).symlink_to(ROOT / name)
    start = folder / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(site)!r})\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    # The host takes seconds to compile, and the interpreters here are many.
    path = os.pathsep.join([str(start), str(site)])
    return env | {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


class Home:
    """A user's home that no test shares, with a terminal."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir()
        names = ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "STATE_HOME")
        xdg = {f"XDG_{name}": str(folder / name.lower()) for name in names}
        self.env = env | xdg | {"HOME": str(folder), "HF_HOME": str(folder / "hf")}

    def python(self, *arguments: str) -> str:
        result = subprocess.run(
            [sys.executable, *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def run(self, code: str) -> list[str]:
        (self.folder / "script.py").write_text(textwrap.dedent(code))
        return self.python("script.py").splitlines()

    def phoonnx_voices(self, *commands: str) -> list[str]:
        """What each command prints. They share an interpreter: phoonnx takes seconds to import."""
        code = f"""
        import contextlib, sys
        from phoonnx.cli import cli
        with contextlib.redirect_stderr(sys.stdout):
            for command in {commands!r}:
                print("$")
                cli.main(command.split(), standalone_mode=False)
        """
        return "\n".join(self.run(code)).split("$\n")[1:]


@pytest.fixture
def home(hub_cache: Path, tmp_path: Path, installation: dict[str, str]) -> Home:
    hub = {"HF_HUB_CACHE": str(hub_cache), "HF_HUB_OFFLINE": "1"}
    return Home(tmp_path / "home", installation | hub)


@pytest.fixture
def offline_home(tmp_path: Path, installation: dict[str, str]) -> Home:
    """No network, and nothing downloaded."""
    hub = {"HF_HUB_CACHE": str(tmp_path / "nothing"), "HF_HUB_OFFLINE": "1"}
    return Home(tmp_path / "home", installation | hub)


def test_the_readmes_snippet_speaks_word_for_word(home: Home) -> None:
    assert SNIPPET in (ROOT / "README.md").read_text(encoding="utf-8")
    lines = home.run(
        SNIPPET + "print(type(voice).__module__, len(audio) > 0, len(audio) % 640)\n"
        "import sys; print('phoonnx_llasa_autoload' in sys.modules, 'torch' in sys.modules)\n"
    )
    assert lines[-2:] == ["phoonnx_llasa.host.voice True 0", "True False"]


def test_the_hosts_command_lists_and_downloads_our_voices(home: Home) -> None:
    available, on_demand, _, verbose, listed, cached = home.phoonnx_voices(
        "list-available",
        "download llasa/HKUST/zh/1b",
        "update-cache",
        "list-voices --lang zh-CN -v",
        "list-voices --lang en-US",
        "download llasa/HKUST/en/1b",
    )
    assert set(OURS) <= set(available.split())
    assert "looking it up in bundled indexes" in on_demand
    assert on_demand.strip().endswith("Download complete.")
    assert "ID:          llasa/HKUST/zh/1b" in verbose
    assert "CC BY-NC 4.0" in verbose
    assert "Llasa-1B English (licence CC BY-NC 4.0" in listed
    assert "Download complete. Files saved to: " in cached
    assert cached.split()[-1].endswith("/llasa-1b-onnx")


def test_the_built_in_voice_needs_neither_network_nor_cache(offline_home: Home) -> None:
    impossible, _, downloaded = offline_home.phoonnx_voices(
        "download llasa/HKUST/en/1b", "update-cache", "download llasa/demo/en/tiny"
    )
    assert "error occurred during download" in impossible
    assert Path(downloaded.split()[-1]).resolve() == ROOT / "phoonnx_llasa" / "demo"
    lines = offline_home.run(
        """
        from phoonnx.config import SynthesisConfig
        from phoonnx.model_manager import TTSModelManager
        manager = TTSModelManager()
        manager.load()  # what update-cache left on disk: plain entries
        info = manager.get_voice("llasa/demo/en/tiny")
        print(type(info).__module__, info.voice_path.name, info.disk_size() > 1_000_000)
        voice = info.load()
        config = SynthesisConfig(extra_params={"seed": 1})
        print(sum(len(c.audio_float_array) for c in voice.synthesize("Hello.", config)) > 3200)
        print(manager.load_voice("llasa/demo/en/tiny").session is voice.session)
        """
    )
    assert lines[-3:] == ["phoonnx.model_manager demo True", "True", "True"]
    cache = next((offline_home.folder / "cache_home").rglob("voices.json"))
    assert "phoonnx-llasa:demo/model.onnx" in cache.read_text(encoding="utf-8")
    assert "site/phoonnx_llasa" not in cache.read_text(encoding="utf-8")


def test_the_ovos_plugin_speaks_with_our_voices(home: Home) -> None:
    lines = home.run(
        """
        from phoonnx.opm import PhoonnxTTSPlugin
        plugin = PhoonnxTTSPlugin({"voice": "llasa/HKUST/en/1b", "lang": "en-US",
                                   "max_loaded_bytes": 10_000_000})
        print(plugin.get_tts("Hello there.", "one.wav", voice="llasa/HKUST/en/1b"))
        plugin.get_tts("你好。", "two.wav", lang="zh-CN", voice="llasa/HKUST/zh/1b")
        plugin.get_tts("...", "three.wav", voice="llasa/HKUST/en/en_male_a")
        voices = list(plugin.voice_cache.voices.values())
        print(len(voices), len({id(v.session) for v in voices}), type(voices[0]).__name__)
        sizes = {i: plugin.get_voice_info(i).disk_size() for i in plugin.voice_cache.voices}
        print(plugin.voice_cache.resident_bytes() == max(sizes.values()), len(set(sizes.values())))
        try:
            plugin.get_tts("Hello.", "four.wav", voice="llasa/HKUST/en/1b", ref_wav="me.wav")
        except Exception as error:
            print(type(error).__name__, error)
        print(plugin.get_default_voice("en-US").voice_id.startswith("llasa"))
        """
    )
    assert "('one.wav', None)" in lines
    assert "3 1 LlasaVoice" in lines
    assert "True 1" in lines
    assert any(line.startswith("UnsupportedError Llasa cannot clone") for line in lines)
    assert lines[-1] == "False"
    for name, silent in (("one", False), ("two", False), ("three", True)):
        with wave.open(str(home.folder / f"{name}.wav")) as file:
            assert file.getparams()[:3] == (1, 2, 16000)
            assert (file.getnframes() == 0) is silent
            assert file.getnframes() % 320 == 0
    assert not (home.folder / "four.wav").exists()
    assert not list(home.folder.glob("*.part"))


def test_without_the_hook_the_host_is_its_own_until_the_package_is_imported(home: Home) -> None:
    home.env["PHOONNX_LLASA_AUTOLOAD"] = "0"
    lines = home.run(
        """
        from phoonnx.model_manager import TTSModelManager
        by_source = TTSModelManager().get_available_voice_ids_by_source()
        print("phoonnx_llasa" in by_source, hasattr(TTSModelManager, "load_voice"))
        import phoonnx_llasa
        print(type(TTSModelManager().load_voice("llasa/HKUST/zh/zh_male_a")).__name__)
        """
    )
    assert lines[-2:] == ["False False", "LlasaVoice"]
