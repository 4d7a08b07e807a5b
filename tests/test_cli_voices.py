"""`phoonnx-llasa voices`: models and presets, for people and for programs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import error_of, own_folders, run, use_cache
from click.testing import CliRunner

from phoonnx_llasa import open_bundle
from phoonnx_llasa.cli import cli
from phoonnx_llasa.commands.common import BUILT_IN
from phoonnx_llasa.host.downloads import human_bytes
from phoonnx_llasa.presets import Preset
from phoonnx_llasa.user_voices import save_preset

VOICE = "llasa/HKUST/en/1b"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_folders(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_cache(tmp_path / "empty", monkeypatch)
    return tmp_path / "empty"


def columns(text: str) -> list[dict[str, str]]:
    """The rows of a table by its headings, which begin where their columns do."""
    head, *rows = text.splitlines()
    names = [name for name in head.split("  ") if name]
    starts = [head.index(name) for name in names]
    ends = [*starts[1:], None]
    return [
        {name.strip(): row[a:b].strip() for name, a, b in zip(names, starts, ends, strict=True)}
        for row in rows
    ]


def test_ids_are_listed_with_language_state_size_and_licence(hub_cache: Path, small_bundle: Path):
    result = run("voices")
    assert (result.exit_code, result.stderr) == (0, "")
    table = {row.pop("ID"): row for row in columns(result.stdout)}
    size = human_bytes(open_bundle(small_bundle).num_bytes)
    here = {"STATE": "downloaded", "SIZE": size, "LICENCE": "CC BY-NC 4.0"}
    assert table[VOICE] == {"LANGUAGE": "en-US", **here}
    assert table["llasa/HKUST/zh/zh_male_a"] == {"LANGUAGE": "zh-CN", **here}
    assert table[BUILT_IN]["STATE"] == "built in"
    assert table[BUILT_IN]["LICENCE"] == "Apache-2.0"


def test_what_is_not_here_has_the_size_of_its_download(empty_cache: Path):
    table = {row.pop("ID"): row for row in columns(run("voices").stdout)}
    assert table[VOICE]["STATE"] == "not downloaded"
    assert table[VOICE]["SIZE"] == "6.25 GB"
    assert not empty_cache.exists()


def test_json_can_be_read_where_utf8_is_not_taken(small_bundle: Path):
    text = "雨停了。é"
    save_preset(open_bundle(small_bundle).codec, Preset("mine", text, "zh", tuple(range(60))))
    runner = CliRunner(charset="latin-1")
    result = runner.invoke(cli, ["voices", "--json", "-m", str(small_bundle)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout_bytes.decode("ascii"))["presets"][-1]["text"] == text


def test_programs_get_json(hub_cache: Path, small_bundle: Path):
    found = {voice["id"]: voice for voice in json.loads(run("voices", "--json").stdout)["voices"]}
    assert found[VOICE] == {
        "id": VOICE,
        "language": "en-US",
        "name": "Llasa-1B English (licence CC BY-NC 4.0: not for commercial use)",
        "licence": "CC BY-NC 4.0",
        "state": "downloaded",
        "downloaded": True,
        "size_bytes": sum(
            path.stat().st_size
            for path in small_bundle.iterdir()
            if path.name not in {"README.md", "SHA256SUMS", "config.json"}
        ),
        "problem": None,
    }
    assert found[BUILT_IN]["state"] == "built in"


def test_a_broken_model_is_told_and_the_others_are_listed(hub_cache: Path):
    for path in hub_cache.rglob("config.json"):
        path.resolve().write_text('{"engine": 5}')
    result = run("voices")
    assert result.exit_code == 0
    assert "config.json: field 'engine' is 5" in result.stderr
    table = {row.pop("ID"): row for row in columns(result.stdout)}
    assert (table[VOICE]["STATE"], table[VOICE]["LICENCE"]) == ("broken", "not known yet")
    assert table[BUILT_IN]["STATE"] == "built in"
    found = {voice["id"]: voice for voice in json.loads(run("voices", "--json").stdout)["voices"]}
    assert "'engine' is 5" in found[VOICE]["problem"]


@pytest.mark.parametrize("by_id", [False, True])
def test_presets_are_listed_with_who_made_them(hub_cache: Path, small_bundle: Path, by_id: bool):
    codec = open_bundle(small_bundle).codec
    save_preset(codec, Preset("mine", "It is\nmine.", "en", (1,) * 100, True, 5))
    save_preset(codec, Preset("aunt", "A recording.", "de", (1,) * 75, False))
    model = VOICE if by_id else str(small_bundle)
    rows = columns(run("voices", "-m", model).stdout)
    table = {row.pop("PRESET"): row for row in rows}
    assert list(table) == [
        *("en_female_a (default)", "en_male_a", "zh_female_a", "zh_male_a", "mine", "aunt")
    ]
    assert table["mine"] == {
        "LANGUAGE": "en",
        "SECONDS": "2.0",
        "SEED": "5",
        "MADE BY": "you",
        "SAYS": "It is mine.",
    }
    assert table["aunt"]["MADE BY"] == "you, from a recording"
    assert table["en_male_a"]["MADE BY"] == "the model"
    listed = json.loads(run("voices", "-m", model, "--json").stdout)
    assert listed["model"] == model
    presets = {preset["name"]: preset for preset in listed["presets"]}
    assert presets["mine"] == {
        "name": "mine",
        "language": "en",
        "seconds": 2.0,
        "seed": 5,
        "synthetic": True,
        "own": True,
        "default": False,
        "text": "It is\nmine.",
    }
    assert presets["aunt"]["synthetic"] is False
    assert presets["en_female_a"]["default"]
    assert not presets["en_female_a"]["own"]


def test_a_broken_preset_is_told_and_the_others_are_listed(small_bundle: Path):
    codec = open_bundle(small_bundle).codec
    path = save_preset(codec, Preset("mine", "It is mine.", "en", (1,) * 100))
    data = json.loads(path.read_text())
    data["presets"]["far"] = data["presets"]["mine"] | {"codes": [1 << 20]}
    path.write_text(json.dumps(data))
    result = run("voices", "-q", "-m", small_bundle)
    assert result.exit_code == 0
    assert "voice preset 'far': \"codes\"[0] is 1048576" in result.stderr
    assert "mine" in result.stdout


def test_the_built_in_voice_is_there_whatever_is_imported_first(work: Path):
    """In a process of its own: here, phoonnx is loaded already."""
    code = "from phoonnx_llasa.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "voices", "--json"], capture_output=True, check=True, cwd=work
    )
    found = {voice["id"]: voice for voice in json.loads(done.stdout)["voices"]}
    assert found[BUILT_IN]["downloaded"], done.stderr
    assert b"could not register" not in done.stderr


def test_presets_of_a_model_that_is_not_here_say_how_to_get_it(empty_cache: Path):
    assert f"phoonnx-llasa download {VOICE}" in error_of(run("voices", "-m", VOICE))
