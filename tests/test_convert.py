"""Stages in order, each once; presets, recordings and publication."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.measures import measure, pitch
from phoonnx_llasa.presets import Preset, Voices, read_voices, write_voices
from phoonnx_llasa.synthesis import Synthesizer
from scripts.conversion.llasa import convert, make_presets, publish, render_samples
from scripts.conversion.llasa.checksums import check_sums, write_sums
from scripts.conversion.llasa.convert import Settings, plan
from scripts.conversion.llasa.stages import ROOT, Journal, Stage, StageError, run_stages

RATE = 16_000


# Stages


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that copies a file with a line more, or fails."""
    source = (
        "import sys, pathlib\n"
        "source, target = map(pathlib.Path, sys.argv[1:3])\n"
        "ballast = bytearray(int(sys.argv[3])) if len(sys.argv) > 3 else b''\n"
        "sys.exit(3) if source.read_text() == 'bad' else None\n"
        "target.write_text(source.read_text() + 'x')\n"
    )
    (tmp_path / "copies_a_file.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "copies_a_file"
    sys.modules.pop("copies_a_file", None)


def chain(module: str, folder: Path, *more: str) -> list[Stage]:
    names = [folder / name for name in ("a", "b", "c")]
    return [
        Stage(f"{one.name} to {two.name}", module, (str(one), str(two), *more), (one,), (two,))
        for one, two in pairwise(names)
    ]


def test_stages_run_once_and_again_when_what_they_read_changed(
    module: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    work, stages = tmp_path / "work", chain(module, tmp_path)

    def ran(**options) -> list[str]:
        caplog.clear()
        run_stages(stages, work, **options)
        lines = [record.getMessage() for record in caplog.records]
        return [line.split("] ")[1].split(" ...")[0] for line in lines if line.endswith(" ...")]

    (tmp_path / "a").write_text("1")
    assert ran() == ["a to b", "b to c"]
    assert (tmp_path / "c").read_text() == "1xx"
    assert ran() == []
    assert ran(restart=True) == ["a to b", "b to c"]
    (tmp_path / "c").unlink()
    assert ran() == ["b to c"]
    (tmp_path / "b").write_text("cut")
    assert ran() == ["a to b", "b to c"]
    (tmp_path / "a").write_text("22")
    assert ran() == ["a to b", "b to c"]
    stages = chain(module, tmp_path, "10")
    assert ran() == ["a to b", "b to c"]
    (tmp_path / "copies_a_file.py").write_text((tmp_path / "copies_a_file.py").read_text() + "\n")
    assert ran() == ["a to b", "b to c"]
    (work / "journal.json").write_text('{"a to b": 3}')
    assert ran() == ["a to b", "b to c"]


def test_a_failing_stage_keeps_what_was_done(module: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    good, bad = chain(module, tmp_path)
    (tmp_path / "bad").write_text("bad")
    bad = dataclasses.replace(
        bad, arguments=(str(tmp_path / "bad"), str(tmp_path / "c")), inputs=(tmp_path / "bad",)
    )
    with pytest.raises(StageError, match=r"b to c failed \(exit status 3\)"):
        run_stages([good, bad], tmp_path / "work")
    journal = Journal(tmp_path / "work")
    assert journal.holds(good)
    assert not journal.holds(bad)
    (tmp_path / "bad").write_text("good")
    run_stages([good, bad], tmp_path / "work")
    (tmp_path / "bad").unlink()
    with pytest.raises(StageError, match="bad does not exist"):
        run_stages([good, bad], tmp_path / "work")


def test_memory_is_each_stages_own(module: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    large, small = chain(module, tmp_path, "300000000")
    small = dataclasses.replace(small, arguments=small.arguments[:2])
    (tmp_path / "stages.pickle").write_bytes(pickle.dumps([large, small]))
    # From a fresh process: a child's peak is never below what its parent had when it started.
    script = (
        "import pickle, sys; from pathlib import Path; "
        "from scripts.conversion.llasa.stages import run_stages; "
        "stages = pickle.loads(Path(sys.argv[1]).read_bytes()); "
        "print(*(record.peak_bytes for record in run_stages(stages, Path(sys.argv[2]))))"
    )
    command = [
        sys.executable,
        "-c",
        script,
        str(tmp_path / "stages.pickle"),
        str(tmp_path / "work"),
    ]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    first, second = map(int, output.split())
    assert 300_000_000 < first < 500_000_000
    assert second < 200_000_000


# The plan


@pytest.fixture
def settings(small_checkpoints: Path, tmp_path: Path) -> Settings:
    return Settings(
        llm=small_checkpoints / "llm",
        codec=small_checkpoints / "xcodec2",
        work=tmp_path / "work",
        out=tmp_path / "llasa-tiny-onnx",
        presets=False,
    )


def names(settings: Settings, **changes) -> list[str]:
    return [stage.name for stage in plan(dataclasses.replace(settings, **changes))]


def test_the_plan_has_what_was_asked_for(settings: Settings, tmp_path: Path) -> None:
    short = {"samples": False}
    base = [
        "language model",
        "one embedding",
        "codec",
        "parity of the language model",
        "parity of the codec",
    ]
    assert names(settings, **short) == [*base, "bundle"]
    assert names(settings) == [*base, "speaking draft", "recordings", "bundle"]
    assert names(settings, variants=True, **short) == [*base, "quantized variants", "bundle"]
    assert names(settings, presets=True, **short) == [*base, "silent draft", "presets", "bundle"]
    assert names(settings, presets=True, voices=tmp_path / "v.json", **short) == [*base, "bundle"]
    assert names(settings, encoder=True, **short) == [*base, "encoder", "bundle"]
    assert names(settings, form="int8", **short) == [
        *base,
        "smaller language model",
        "smaller codec",
        "gate of the smaller model",
        "bundle",
    ]


def test_a_head_of_its_own_is_not_deduped(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "untied"
    shutil.copytree(settings.llm, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    stages = plan(dataclasses.replace(settings, llm=folder))
    assert "one embedding" not in [stage.name for stage in stages]
    (bundle,) = (stage for stage in stages if stage.name == "bundle")
    assert str(settings.work / "separate" / "model.onnx") in bundle.arguments


def test_every_stage_reads_what_one_before_it_wrote(settings: Settings) -> None:
    everything = dataclasses.replace(
        settings, presets=True, variants=True, form="int8", encoder=True
    )
    there = {settings.llm, settings.codec, settings.llm / "tokenizer.json"}
    for stage in plan(everything):
        for path in stage.inputs:
            assert path in there or path.parent in there, f"{stage.name} reads {path}"
        there.update(stage.outputs)


@pytest.mark.slow
def test_one_command_makes_a_bundle(settings: Settings, capsys: pytest.CaptureFixture) -> None:
    arguments = [
        *("--llm", str(settings.llm), "--codec", str(settings.codec)),
        *("--work", str(settings.work), "--out", str(settings.out)),
        *("--form", "fp16", "--no-presets", "--variants"),
    ]
    assert convert.main(arguments) == 0
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + len(
        plan(dataclasses.replace(settings, form="fp16", variants=True))
    )
    assert check_sums(settings.out) == []
    card = (settings.out / "README.md").read_text()
    for gate in ("parity_llm", "parity_codec", "gate_quantized"):
        assert f"{gate}: passed" in card
    voice = Synthesizer.open(open_bundle(settings.out))
    blocks = list(voice.synthesize("Hello.", voice.options({"seed": 1, "max_new_tokens": 30})))
    num_codes = sum(len(block.codes) for block in blocks)  # random weights may end by themselves
    assert sum(len(block.samples) for block in blocks) == num_codes * 320 > 0
    before = (settings.out / "SHA256SUMS").stat().st_mtime_ns
    assert convert.main(arguments) == 0
    assert (settings.out / "SHA256SUMS").stat().st_mtime_ns == before


# Presets and recordings


@pytest.fixture(scope="module")
def demo(demo_bundle: Path) -> Synthesizer:
    return Synthesizer.open(open_bundle(demo_bundle))


WISH = make_presets.Wish("calm", "en", "The garden is very quiet in the evening.")


def test_a_preset_is_made_from_text_and_a_seed(demo_bundle: Path, tmp_path: Path) -> None:
    wishes = tmp_path / "wishes.json"
    wishes.write_text(json.dumps([{"name": WISH.name, "lang": WISH.lang, "text": WISH.text}]))
    output = tmp_path / "new" / "voices.json"
    arguments = [str(demo_bundle), str(output), "--wishes", str(wishes), "--no-listen"]
    assert make_presets.main([*arguments, "--seeds", "6", "--enough", "2"]) == 0
    voices = read_voices(output, num_codes=1024)
    preset = voices.get(None)
    assert preset is not None
    assert (preset.name, preset.text, preset.synthetic) == ("calm", WISH.text, True)
    assert 50 < len(preset.codes) < 300
    assert json.loads(output.read_text())["note"] == make_presets.NOTE
    voice = Synthesizer.open(open_bundle(demo_bundle))
    again = make_presets.speak(voice, WISH, preset.seed, None)
    assert again.codes == preset.codes


@pytest.mark.parametrize(
    ("changes", "bounds", "reason"),
    [
        ({"pitch": (60, 90)}, {}, r"pitch \d+ Hz"),
        ({}, {"rate": (1, 2)}, "letters a second"),
        ({}, {"longest_silence": 0.0}, "s of silence"),
        ({}, {"ending_db": -80}, "as if cut off"),
        ({}, {"clipped": -1}, "clipped"),
    ],
)
def test_what_does_not_measure_up_is_no_preset(
    demo: Synthesizer, changes: dict, bounds: dict, reason: str
) -> None:
    wish = dataclasses.replace(WISH, **changes)
    with pytest.raises(make_presets.NoCandidateError, match=f"seed 3: .*{reason}"):
        make_presets.find_preset(demo, wish, seeds=[3], bounds=make_presets.Bounds(**bounds))


def test_what_is_misheard_or_cut_off_is_no_preset(demo: Synthesizer) -> None:
    good = make_presets.speak(demo, WISH, 0, lambda _: WISH.text)
    assert good.word_errors == 0
    misheard = make_presets.speak(demo, WISH, 0, lambda _: "The garden is very loud today.")
    assert misheard.faults_for(WISH, make_presets.Bounds())[-1].endswith("of the words misheard")
    cut = dataclasses.replace(good, truncated=True)
    assert "did not end by itself" in cut.faults_for(WISH, make_presets.Bounds())
    with pytest.raises(ValueError, match="spoken in pieces"):
        make_presets.speak(demo, dataclasses.replace(WISH, text=f"{WISH.text} " * 3), 0, None)


def test_wishes_are_read_with_care(tmp_path: Path) -> None:
    path = tmp_path / "wishes.json"
    path.write_text('[{"name": "a", "lang": "en", "text": "Hi.", "pitch": [80, 150]}]')
    assert make_presets.read_wishes(path) == [make_presets.Wish("a", "en", "Hi.", (80.0, 150.0))]
    path.write_text('[{"name": "a"}]')
    with pytest.raises(ValueError, match="no list of wishes"):
        make_presets.read_wishes(path)


def tone(seconds: float, frequency: float, level: float = 0.3) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    harmonics = sum(np.sin(2 * np.pi * frequency * n * time) / n for n in range(1, 9))
    return (level * harmonics).astype(np.float32)


@pytest.mark.parametrize("frequency", [80.0, 110.0, 155.0, 220.0, 330.0])
def test_the_pitch_is_that_of_the_voice(frequency: float) -> None:
    assert pitch(tone(1.0, frequency), RATE) == pytest.approx(frequency, rel=0.02)
    noise = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    assert pitch(noise, RATE) == 0
    assert pitch(np.zeros(RATE, np.float32), RATE) == 0


def test_a_clip_is_measured() -> None:
    silence = np.zeros(round(0.5 * RATE), np.float32)
    sound = np.concatenate([silence, tone(1.0, 120), silence, silence, tone(0.5, 120), silence])
    found = measure(sound, RATE, "thirty letters of spoken text.")
    assert found.seconds == pytest.approx(3.5)
    assert found.longest_silence == pytest.approx(1.0, abs=0.03)
    assert found.rate == pytest.approx(30 / 2.5, rel=0.1)
    assert found.ending_db < -100
    assert found.clipped == 0
    cut = measure(sound[: round(2.9 * RATE)], RATE, "x")
    assert cut.ending_db > -3
    assert measure(np.clip(5 * sound, -1, 1), RATE, "x").clipped > 0.2
    empty = measure(np.zeros(0, np.float32), RATE, "x")
    assert (empty.seconds, empty.rate, empty.pitch) == (0, 0, 0)


def test_every_preset_is_recorded(small_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    for path in small_bundle.iterdir():
        shutil.copyfile(path, folder / path.name)
    presets = {
        name: Preset(name, "Hello there.", lang, tuple(range(60)))
        for name, lang in (("a b", "en"), ("她", "zh"))
    }
    write_voices(folder / "voices.json", Voices(presets, "a b"))
    voice = Synthesizer.open(open_bundle(folder))
    samples = render_samples.render_samples(voice, tmp_path / "samples", texts={"en": "Hm."})
    assert [sample.file for sample in samples] == ["a_b.wav", "她.wav"]
    manifest = json.loads((tmp_path / "samples" / "manifest.json").read_text())
    assert [each["preset"] for each in manifest["samples"]] == ["a b", "她"]
    assert manifest["license"] == "CC BY-NC 4.0"
    for sample in samples:
        with wave.open(str(tmp_path / "samples" / sample.file)) as recording:
            assert recording.getframerate() == RATE
            assert recording.getnframes() == round(sample.seconds * RATE)
            peak = np.abs(np.frombuffer(recording.readframes(1 << 30), "<i2")).max()
        assert 8_000 < peak <= 32_767

    again = render_samples.render_samples(voice, tmp_path / "again", texts={"en": "Hm."})
    assert [each.sha256 for each in again] == [each.sha256 for each in samples]


def test_a_voice_without_presets_is_recorded_once(demo_bundle: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(demo_bundle, bare, ignore=shutil.ignore_patterns("voices.json"))
    arguments = [str(bare), str(tmp_path / "samples"), "--text", "Good morning."]
    assert render_samples.main(arguments) == 0
    (sample,) = json.loads((tmp_path / "samples" / "manifest.json").read_text())["samples"]
    assert (sample["file"], sample["preset"], sample["truncated"]) == ("default.wav", None, False)
    assert 0.5 < sample["seconds"] < 4
    assert not sample["streamed"]


def test_a_manifest_tells_how_it_was_made(
    demo_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(demo_bundle, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    arguments = ["bundle", "samples", "--text", "Good morning.", "--seed", "3", "--stream"]
    assert render_samples.main(arguments) == 0
    manifest = json.loads((tmp_path / "samples" / "manifest.json").read_text())
    assert manifest["command"].endswith("bundle samples --text 'Good morning.' --seed 3 --stream")
    assert all(sample["streamed"] for sample in manifest["samples"])


# Publication


class Recorder:
    """Takes down what would be sent; every call has to be one that HfApi understands."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict]] = []

    def __getattr__(self, name: str):
        from huggingface_hub import HfApi

        signature = inspect.signature(getattr(HfApi, name))

        def call(*args, **options):
            bound = signature.bind(None, *args, **options)
            self.calls.append((name, {k: v for k, v in bound.arguments.items() if k != "self"}))
            return "https://example.org/commit"

        return call


@pytest.fixture
def bundle(small_bundle: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "llasa-tiny-onnx"
    shutil.copytree(small_bundle, folder)
    (folder / "samples").mkdir()
    (folder / "samples" / "a.wav").write_bytes(b"RIFF")
    write_sums(folder)
    return folder


def test_a_dry_run_lists_and_sends_nothing(bundle: Path, capsys: pytest.CaptureFixture) -> None:
    hub = Recorder()
    assert publish.main([str(bundle), "--repo", "owner/name"], hub=hub) == 0
    assert hub.calls == []
    out = capsys.readouterr().out
    assert "Nothing was sent" in out
    assert "4  llasa-tiny-onnx/samples/a.wav" in out
    assert "llasa-tiny-onnx/SHA256SUMS" in out
    total = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    assert f"{total:,}  bytes in 9 files" in out


def test_an_upload_is_one_commit(bundle: Path, capsys: pytest.CaptureFixture) -> None:
    hub = Recorder()
    arguments = [str(bundle), "--repo", "owner/name", "--upload", "--path-in-repo", "there"]
    assert publish.main(arguments, hub=hub) == 0
    create, upload = hub.calls
    assert create == (
        "create_repo",
        {"repo_id": "owner/name", "exist_ok": True, "private": False},
    )
    assert upload[0] == "upload_folder"
    assert upload[1] == {
        "repo_id": "owner/name",
        "folder_path": bundle,
        "path_in_repo": "there",
        "revision": "main",
        "commit_message": "Upload there",
    }
    assert "https://example.org/commit" in capsys.readouterr().out


def test_what_was_changed_is_not_sent(bundle: Path, capsys: pytest.CaptureFixture) -> None:
    (bundle / "README.md").write_text("changed")
    hub = Recorder()
    with pytest.raises(SystemExit) as status:
        publish.main([str(bundle), "--repo", "owner/name", "--upload"], hub=hub)
    assert status.value.code == 1
    assert "README.md: was changed" in capsys.readouterr().err
    (bundle / "tokenizer.json").unlink()
    with pytest.raises(SystemExit):
        publish.main([str(bundle), "--repo", "owner/name", "--upload"], hub=hub)
    assert hub.calls == []
