"""`phoonnx-llasa doctor`: what it finds where all is well, and where something is broken."""

import json
import math
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cli_world import own_folders, run, use_cache

from phoonnx_llasa import open_bundle
from phoonnx_llasa.commands import checks
from phoonnx_llasa.commands.common import BUILT_IN
from phoonnx_llasa.presets import Preset
from phoonnx_llasa.user_voices import save_preset

VOICE = "llasa/HKUST/en/1b"
DEMO_VOICES = Path(checks.__file__).parents[1] / "demo" / "voices.json"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    use_cache(tmp_path / "empty", monkeypatch)
    with own_folders(tmp_path, monkeypatch) as folder:
        yield folder


def findings(*arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """What is found, by name."""
    result = run("doctor", "--json", *(arguments or ("--quick",)))
    assert result.exit_code == code, result.output
    report = json.loads(result.stdout, parse_constant=pytest.fail)
    assert report["healthy"] == (code == 0)
    return {finding["name"]: finding for finding in report["findings"]}


def test_all_is_looked_at_and_a_sentence_is_spoken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phoonnx_llasa.machine.Bandwidth.measure", lambda self: 22.15e9)
    found = findings("--quiet")
    assert not [finding for finding in found.values() if finding["status"] == "error"]
    for package in ("python", "phoonnx", "onnxruntime", "numpy", "huggingface-hub", "click"):
        assert found[package]["detail"][0].isdigit()
    assert "CPUExecutionProvider" in found["execution providers"]["data"]["providers"]
    assert found["processor"]["data"]["threads"] >= 1
    assert found["room for downloads"]["data"]["free"] > 0
    assert found["start-up hook"]["status"] == "ok"
    assert found["OVOS plugin"]["detail"].endswith("is phoonnx_llasa.host.opm")
    built_in = found[BUILT_IN]
    assert built_in["status"] == "ok"
    assert built_in["data"]["presets"] == len(json.loads(DEMO_VOICES.read_text())["presets"])
    assert "compact graph" in built_in["detail"]
    assert "as SHA256SUMS says" in built_in["detail"]
    expected = found["Llasa-1B, 32 bits"]
    assert expected["data"]["seconds_per_code"] == pytest.approx(0.2)
    assert expected["data"]["real_time_factor"] == pytest.approx(10)
    assert "at best 200 ms for 20 ms of sound, 10.0 times as long" in expected["detail"]
    spoken = found["built-in voice"]["data"]
    assert spoken["codes"] == round(spoken["sound_seconds"] * 50)
    assert 1.5 < spoken["sound_seconds"] < 8
    assert 0 < spoken["first_sound_seconds"] < 60
    assert -36 < spoken["level_dbfs"] < -6


def test_people_get_lines_and_the_quick_way_neither_speaks_nor_measures():
    result = run("doctor", "--quick")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "versions"
    assert any(line.split()[:2] == ["ok", "onnxruntime"] for line in lines)
    assert "speed" not in lines
    assert "speech" not in lines
    assert lines[-1] == "all is well" or "warning" in lines[-1]


def test_the_memory_of_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "_LARGEST_BUFFER", 32 << 20)
    bandwidth, expected = checks.speed()
    assert 1e8 < bandwidth.data["bytes_per_second"] < 1e13
    product = expected.data["seconds_per_code"] * bandwidth.data["bytes_per_second"]
    assert product == pytest.approx(4.43e9)


def test_a_fast_machine_gets_no_advice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phoonnx_llasa.machine.Bandwidth.measure", lambda self: 500e9)
    _, expected = checks.speed()
    assert (expected.status, expected.advice) == ("ok", "")
    assert "faster than real time" in expected.detail


@pytest.mark.parametrize(
    ("package", "version", "wanted"),
    [("onnxruntime", "1.24.1", "!=1.24.1"), ("phoonnx", "1.90.0", ">=1.93.3a1")],
)
def test_a_version_that_does_not_work_is_an_error_that_says_which_does(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, wanted: str
):
    original = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: version if name == package else original(name)
    )
    finding = findings(code=1)[package]
    assert finding["status"] == "error"
    assert version in finding["detail"]
    assert wanted in finding["advice"]
    lines = run("doctor", "--quick", "-q").stdout
    assert "pip install --upgrade" in lines
    assert "  ok" not in lines


def test_a_package_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch):
    original = metadata.version

    def version(name: str) -> str:
        if name == "tokenizers":
            raise metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(metadata, "version", version)
    assert findings(code=1)["tokenizers"]["detail"] == "is missing"


def test_two_runtimes_are_a_warning_and_one_of_another_name_is_fine(
    monkeypatch: pytest.MonkeyPatch,
):
    original = metadata.version
    there = {"onnxruntime-gpu": "1.30.0"}

    def version(name: str) -> str:
        if name.startswith("onnxruntime"):
            if name not in there:
                raise metadata.PackageNotFoundError(name)
            return there[name]
        return original(name)

    monkeypatch.setattr(metadata, "version", version)
    found = findings()
    assert found["onnxruntime"]["detail"] == "1.30.0"
    assert "packages" not in found
    there["onnxruntime"] = "1.31.0"
    assert findings()["packages"]["status"] == "warning"


@pytest.mark.parametrize("name", ["config.json", "model.onnx_data", "tokenizer.json", "model.onnx"])
def test_a_model_that_is_broken_is_an_error_that_says_how_to_mend_it(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    use_cache(hub_cache, monkeypatch)
    assert findings()["llasa/HKUST/en/1b"]["status"] == "ok"
    for path in hub_cache.rglob(name):
        path.resolve().write_bytes(b"{")
    finding = findings(code=1)[VOICE]
    assert finding["status"] == "error"
    assert name in finding["detail"]
    assert finding["advice"] == f"phoonnx-llasa download --force {VOICE}"


def test_voices_of_one_model_are_one_finding(hub_cache: Path, monkeypatch: pytest.MonkeyPatch):
    use_cache(hub_cache, monkeypatch)
    found = findings()
    assert [name for name in found if name.startswith("llasa/")] == [VOICE, BUILT_IN]
    assert "to be proven when it is first loaded" in found[VOICE]["detail"]
    monkeypatch.setenv("PHOONNX_LLASA_PROOF", "off")
    assert "PHOONNX_LLASA_PROOF is off" in findings()[VOICE]["detail"]
    monkeypatch.setenv("PHOONNX_LLASA_GRAPH", "published")
    assert "the published graph" in findings()[VOICE]["detail"]


def test_presets_of_the_users_own_are_told_and_broken_ones_are_a_warning(demo_bundle: Path):
    codec = open_bundle(demo_bundle).codec
    path = save_preset(codec, Preset("mine", "It is mine.", "en", (1, 2, 3)))
    name = f"your presets for {BUILT_IN}"
    assert (findings()[name]["status"], findings()[name]["detail"]) == ("ok", "mine")
    data = json.loads(path.read_text())
    data["presets"]["far"] = data["presets"]["mine"] | {"codes": [1024]}
    path.write_text(json.dumps(data))
    warning, good = [f for f in checks.voices() if f.name == name]
    assert warning.status == "warning"
    assert "'far'" in warning.detail
    assert good.detail == "mine"
    path.write_text("{")
    assert findings()[name]["status"] == "warning"


def test_the_hook_that_is_off_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHOONNX_LLASA_AUTOLOAD", "0")
    finding = findings()["start-up hook"]
    assert finding["status"] == "warning"
    assert "PHOONNX_LLASA_AUTOLOAD" in finding["advice"]


def test_without_a_player_a_note_says_what_to_install(monkeypatch: pytest.MonkeyPatch, work: Path):
    monkeypatch.setenv("PATH", str(work))
    finding = findings()["programs"]
    assert (finding["status"], finding["data"]) == ("note", {"players": []})
    assert "ffmpeg" in finding["advice"]
    (work / "aplay").write_text("#!/bin/sh\n")
    (work / "aplay").chmod(0o755)
    assert findings()["programs"]["data"] == {"players": ["aplay"]}


def test_folders_that_cannot_be_written_to_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = findings()
    assert found["presets of your own"]["status"] == "warning"
    assert "XDG_DATA_HOME" in found["presets of your own"]["advice"]
    assert found["proofs"]["status"] == "warning"


def test_offline_mode_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "nothing is downloaded" in findings()["network"]["detail"]


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: 1 / 0)
    found = findings(code=1)
    assert "ZeroDivisionError" in found["check"]["detail"]
    assert found[BUILT_IN]["status"] == "ok"


def test_a_package_that_cannot_be_imported_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "phoonnx.log", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run("doctor", "--quick")
    assert result.exit_code == 1
    assert "warning: " in result.stderr
    assert "Traceback" not in result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["ok", "numpy", metadata.version("numpy")] in lines
    assert "import of onnxruntime halted" in result.stdout


GOOD = {"codes": 150, "truncated": False, "level": 0.1}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"codes": 3}, "3 codes for a sentence"),
        ({"codes": 1_000}, "1000 codes for a sentence"),
        ({"truncated": True}, "did not come to an end"),
        ({"level": 0.001}, "silent"),
        ({"level": 0.9}, "distorted"),
        ({"level": math.nan}, "not made of numbers"),
    ],
)
def test_speech_is_judged(change: dict[str, Any], problem: str):
    told = checks.speech_problem(**(GOOD | change))
    assert problem in told
    assert bool(told) == bool(problem)


def test_speech_that_is_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "_SENTENCE", "?!")
    (finding,) = checks.speech()
    assert finding.status == "error"
    assert finding.detail.startswith("0 codes")
