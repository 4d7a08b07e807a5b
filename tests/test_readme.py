"""What the documents show is run, and what they list is what there is."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from phoonnx_llasa.cli import cli
from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.host.ovos_voices import read_settings
from phoonnx_llasa.options import parse_options
from phoonnx_llasa.presets import read_voices
from scripts.conversion.llasa.make_presets import read_wishes

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Languages of code blocks, each with a test below; a block of none is a drawing.
LANGUAGES = {"python", "console", "sh", "json", ""}


def code_blocks() -> dict[str, tuple[str, str]]:
    """`file:line` -> language and code of every fenced block."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    found = {}
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in fence.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found[f"{path.name}:{line}"] = (match[1], match[2])
    return found


BLOCKS = code_blocks()


def blocks_of(language: str) -> pytest.MarkDecorator:
    chosen = {name: code for name, (lang, code) in BLOCKS.items() if lang == language}
    return pytest.mark.parametrize("code", chosen.values(), ids=chosen)


@pytest.fixture
def work(
    hub_cache: Path, small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with what the documents' examples take for granted, and a filled hub cache."""
    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "xdg" / kind.lower()))
    monkeypatch.delenv("PHOONNX_LLASA_MODEL", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my-bundle").symlink_to(small_bundle)
    (folder / "story.txt").write_text("It was late. Nobody came.\n")
    monkeypatch.chdir(folder)
    return folder


def test_every_block_is_of_a_language_that_is_run():
    assert {language for language, _ in BLOCKS.values()} <= LANGUAGES


@blocks_of("python")
def test_python_code_speaks(code: str, work: Path, capsys: pytest.CaptureFixture[str]):
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "<document>", "exec"), names)
    sounds = [len(name) for name in (names.get("audio"),) if isinstance(name, bytes)]
    for path in work.glob("*.wav"):
        with wave.open(str(path)) as sound:
            sounds.append(sound.getnframes())
    printed = capsys.readouterr().out.splitlines()
    # at least a code: without a seed the random model may end soon
    assert max(sounds, default=0) >= 320 or any("samples" in line for line in printed)


def test_the_first_example_is_the_one_that_is_promised():
    snippet = next(code for language, code in BLOCKS.values() if language == "python")
    assert snippet.splitlines()[2] == 'voice = TTSModelManager().load_voice("llasa/HKUST/en/1b")'


@pytest.mark.slow
@blocks_of("console")
def test_console_commands_end_well(code: str, work: Path):
    commands = [line.removeprefix("$ ") for line in code.splitlines()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    wanted = set(re.findall(r"(?:-o|>) (\S+\.wav)", code))
    if re.search(r"llasa say (?!.*(-o|--output|--play))", code):
        wanted.add("speech.wav")
    assert wanted <= {path.name for path in work.glob("*.wav")}
    for path in work.glob("*.wav"):
        with wave.open(str(path)) as opened:
            assert opened.getnframes() > 8_000


def unknown_options(arguments: list[str]) -> list[str]:
    """Options in a call of the command that it does not have."""
    command = cli.commands[arguments[0]]
    known = {name for parameter in command.params for name in parameter.opts}
    return [word for word in arguments if word.startswith("-") and word not in known]


@blocks_of("sh")
def test_set_up_commands_exist(code: str):
    for line in code.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True)
        elif program == "python":
            assert arguments[0] == "-m"
            assert importlib.util.find_spec(arguments[1]) is not None
        elif program == "phoonnx-llasa":  # needs what a test does not have; its options exist
            assert not unknown_options(arguments)
        else:
            assert (program, arguments[0]) == ("pip", "install")
            assert arguments[1:] in (["."], ["-e", ".[convert,listen]"])


@blocks_of("json")
def test_json_is_what_the_reader_takes(code: str, tmp_path: Path):
    data = json.loads(code)
    if isinstance(data, dict) and "tts" in data:
        ovos = data["tts"]
        settings = read_settings(ovos[ovos["module"]])
        assert settings.model == "llasa/HKUST/en/1b"
        assert settings.preset in {"en_female_a", "en_male_a"}
        return
    path = tmp_path / "voices.json"
    path.write_text(code)
    if isinstance(data, list):
        assert [wish.name for wish in read_wishes(path)] == ["en_female_b"]
        return
    voices = read_voices(path, num_codes=65_536)
    assert set(voices.presets) == set(json.loads(code)["presets"])
    assert voices.default_voice in voices.presets


def test_the_table_of_parameters_is_complete():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Parameters")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    names = {name for cell in listed for name in re.findall(r"`(\w+)`", cell)}
    with pytest.raises(ParameterError) as caught:
        parse_options({"no_such_name": 1})
    assert names == set(str(caught.value).partition("one of ")[2].split(", "))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path):
    text = document.read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    assert [t for t in targets if not (document.parent / t.partition("#")[0]).exists()] == []
