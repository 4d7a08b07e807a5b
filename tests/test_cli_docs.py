"""What the command says of itself: help, the page made from it, and completion."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cli_world import own_folders, run
from click.shell_completion import BashComplete

from phoonnx_llasa.cli import cli
from scripts.docs import cli as docs

COMMANDS = sorted(cli.commands)


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_folders(tmp_path, monkeypatch) as folder:
        yield folder


def examples_of(command: click.Command) -> list[str]:
    """Lines of the help's blocks that call the command."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    blocks = [paragraph for paragraph in paragraphs if paragraph.startswith("\b")]
    return [line.strip() for line in "\n".join(blocks).split("\n") if "phoonnx-llasa" in line]


EXAMPLES = [line for name in COMMANDS for line in examples_of(cli.commands[name])]


def test_the_page_is_what_the_command_says():
    """`python -m scripts.docs.cli` writes it anew."""
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page()


def test_an_old_page_is_found_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(docs, "PAGE", tmp_path / "cli.md")
    docs.PAGE.write_text("old")
    assert docs.main(["--check"]) == 1
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    text = docs.PAGE.read_text()
    for name in COMMANDS:
        assert f"\n## phoonnx-llasa {name}\n" in text
    for parameter in cli.commands["say"].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in text
    assert "130  stopped by Ctrl-C" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str):
    assert any(f"phoonnx-llasa {name}" in line for line in examples_of(cli.commands[name]))


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_called_rightly(line: str):
    """With the files that it takes for granted; it is not run."""
    for name in ("one.txt", "two.txt", "me.wav"):
        Path(name).touch()
    call = line.partition("phoonnx-llasa ")[2]
    name, *words = shlex.split(re.split(r" (?:\||<|>>?) ", call)[0])
    root = click.Context(cli, info_name="phoonnx-llasa")
    assert cli.commands[name].make_context(name, words, parent=root).params


def test_exit_codes_and_environment_are_in_the_help():
    text = run("--help").stdout
    for words in ("130  stopped by Ctrl-C", "PHOONNX_LLASA_MODEL", "HF_HUB_OFFLINE"):
        assert words in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shell: str):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_PHOONNX_LLASA_COMPLETE" in result.stdout
    assert f"{shell}_complete" in result.stdout


def complete(*words: str) -> list[str]:
    """What is offered for the last of some words."""
    *before, last = words
    completer = BashComplete(cli, {}, "phoonnx-llasa", "_PHOONNX_LLASA_COMPLETE")
    return [item.value for item in completer.get_completions(before, last)]


def test_models_and_presets_are_completed(
    small_bundle: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    presets = ["en_female_a", "en_male_a"]
    models = ["llasa/HKUST/en/1b", "llasa/HKUST/zh/1b"]
    assert complete("say", "--model", "llasa/H") == models
    assert complete("say", "-m", str(small_bundle), "--voice", "en_") == presets
    assert complete("say", "-m", models[0], "--voice", "en_") == presets
    assert complete("say", "--voice", "no") == ["none"]
    assert "calm" in complete("say", "--voice", "")
    assert complete("say", "-m", "./nowhere", "--voice", "") == ["none"]
    monkeypatch.setenv("PHOONNX_LLASA_MODEL", str(small_bundle))
    assert complete("say", "--voice", "en_") == presets


def test_a_preset_of_ones_own_is_completed(demo_bundle: Path):
    from phoonnx_llasa.bundle import open_bundle
    from phoonnx_llasa.presets import Preset
    from phoonnx_llasa.user_voices import save_preset

    codec = open_bundle(demo_bundle).codec
    save_preset(codec, Preset("mine_alone", "It rains.", "en", tuple(range(60))))
    assert complete("say", "--voice", "mine") == ["mine_alone"]
    path = save_preset(codec, Preset("mine_too", "It rains.", "en", tuple(range(60))))
    path.write_bytes(path.read_bytes().replace(b'"mine_alone"', b'"mine\\u001b[31m"'))
    assert complete("say", "--voice", "mine") == ["mine_too"]
    path.write_bytes(b"\xff")
    assert {"calm", "none"} < set(complete("say", "--voice", ""))


def test_completion_loads_nothing_heavy():
    """A key that is pressed must not take seconds."""
    code = (
        "import sys\n"
        "from click.shell_completion import BashComplete\n"
        "from phoonnx_llasa.cli import cli\n"
        "completer = BashComplete(cli, {}, 'phoonnx-llasa', 'X')\n"
        "print('calm' in [i.value for i in completer.get_completions(['say', '--voice'], 'c')])\n"
        "print(sorted({'onnxruntime', 'phoonnx', 'tokenizers', 'numpy'} & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "True\n[]\n"
