"""The benchmarks, run small: what they say is what they measured."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from benchmarks import machine, parity, picture, report, run
from benchmarks.bundles import PRESET, random_bundle, with_preset
from benchmarks.engines import Subject, available, in_turn, open_engine
from benchmarks.footprint import measure, measure_in_process
from benchmarks.llama_cpp import write_gguf
from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.compact_decoder import CompactModel
from phoonnx_llasa.language_model import open_language_model
from phoonnx_llasa.presets import read_voices
from phoonnx_llasa.synthesis import Synthesizer

ENGINES = ["compact", "published", "phoonnx"]
OPTIONS = [
    *("--engines", *ENGINES),
    *("--past", "12", "40", "--prefill", "8", "30", "--rounds", "3", "--steps", "2"),
    *("--prefill-rounds", "2", "--codes", "30", "--preset-codes", "20", "--buffer", "8"),
    *("--sampling-rounds", "1", "--no-loading"),
]


def nobody(line: str) -> None:
    """Progress goes nowhere."""


@pytest.fixture(scope="module")
def page(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """docs/performance.md after a run, with what stood there before around it."""
    folder = tmp_path_factory.mktemp("docs")
    page = folder / report.PAGE
    page.write_text(f"# Speed\n\nBefore.\n\n{report.BEGIN}\nold\n{report.END}\n\nAfter.\n")
    cache = tmp_path_factory.mktemp("bench")
    places = ["--bundle", str(small_bundle), "--cache", str(cache), "--output", str(folder)]
    run.main([*places, *OPTIONS])
    return page


@pytest.fixture(scope="module")
def results(page: Path) -> report.Results:
    return json.loads((page.parent / report.NUMBERS).read_text())


@pytest.fixture(scope="module")
def subject(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject.open(small_bundle, tmp_path_factory.mktemp("work"))


def test_every_path_is_measured_everywhere(results: report.Results) -> None:
    assert list(results["tokens"]) == list(results["prefill"]) == ENGINES
    for name in ENGINES:
        for past in ("12", "40"):
            times = results["tokens"][name][past]
            assert 0 < times["graph"] < times["whole"] < 10_000
            assert len(results["rounds"][name][past]) == 3
        assert all(seconds > 0 for seconds in results["prefill"][name].values())
        assert list(results["prefill"][name]) == ["8", "30"]
    assert len(results["bandwidth"]["rounds"]) == 2 + 3
    assert all(1e8 < rate < 1e12 for rate in results["bandwidth"]["rounds"])


def test_times_as_fast_is_the_median_of_the_rounds_own_ratios(results: report.Results) -> None:
    assert list(results["times_as_fast"]) == ["published", "phoonnx"]
    rounds = results["rounds"]
    for name, cells in results["times_as_fast"].items():
        for past, ratio in cells.items():
            pairs = zip(rounds[name][past], rounds["compact"][past], strict=True)
            assert ratio == pytest.approx(np.median([theirs / own for theirs, own in pairs]))


def test_the_limit_is_what_a_step_reads_over_the_bandwidth(results: report.Results) -> None:
    """The small bundle: hidden 64, 128 in the MLP, 2 layers, 4 heads of 16, 2 KV heads."""
    layers = 2 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 128)
    assert results["reads"] == {
        "compact": 4 * (layers + 64 * results["model"]["codes"] + 64 * 3),
        "published": 4 * (layers + 64 * 792),
        "phoonnx": 4 * (layers + 64 * 792),
    }
    cache = 40 * 2 * 2 * 2 * 16 * 4  # positions, layers, keys and values, heads, numbers, bytes
    expected = 1e3 * (results["reads"]["phoonnx"] + cache) / results["bandwidth"]["median"]
    assert results["limit"]["phoonnx"]["40"] == pytest.approx(expected)


def test_the_sentence_comes_at_once_or_block_by_block(results: report.Results) -> None:
    own, host = results["sentence"]["own"], results["sentence"]["host"]
    for spoken in (own, host):  # so few codes that the model may draw the end before the cap
        assert 10 / 50 < spoken["sound"] <= 30 / 50
    assert 0 < own["first"] < own["whole"]
    assert host["first"] == host["whole"]
    assert host["prompt"] > 20
    assert set(results["sentence"]["codec"]) == {"25", "50", "100", "165", "200", "400"}


def test_the_page_shows_the_numbers_and_keeps_what_is_around_them(
    page: Path, results: report.Results
) -> None:
    text = page.read_text()
    assert text.startswith(f"# Speed\n\nBefore.\n\n{report.BEGIN}\n")
    assert text.endswith(f"{report.END}\n\nAfter.\n")
    assert "old" not in text
    cell = results["tokens"]["phoonnx"]["40"]
    assert f"| {cell['whole']:.1f} ({cell['graph']:.1f}) |" in text
    assert results["machine"]["processor"] in text
    assert f"onnxruntime {results['machine']['versions']['onnxruntime']}" in text
    picture = (page.parent / report.PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert 5_000 < len(picture) < 200_000


def test_a_report_can_be_written_again_from_its_numbers(page: Path, tmp_path: Path) -> None:
    report.main([str(page.parent / report.NUMBERS), "--output", str(tmp_path)])
    measured = page.read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    assert measured in (tmp_path / report.PAGE).read_text()


def test_a_page_without_a_place_for_the_tables_is_left_alone(
    results: report.Results, tmp_path: Path
) -> None:
    (tmp_path / report.PAGE).write_text("by hand")
    with pytest.raises(ValueError, match=r"performance\.md lacks the lines"):
        report.write_report(results, tmp_path)
    assert (tmp_path / report.PAGE).read_text() == "by hand"


def test_what_is_not_installed_gets_a_row_that_says_so(results: report.Results) -> None:
    missing = {"llama_f16": "llama-cpp-python is not installed"}
    tables = report.tables({**results, "missing": missing})
    assert "| llama.cpp F16: llama-cpp-python is not installed | - | - | - |" in tables
    found, reasons = available(["compact", "llama_f16"])
    assert set(found) | set(reasons) == {"compact", "llama_f16"}
    assert "compact" in found


def test_loading_costs_are_shown(results: report.Results) -> None:
    cost = {"seconds": 0.5, "anonymous": 7e7, "anonymous_used": 2e8, "peak": 5e9}
    tables = report.tables({**results, "loading": {"compact": cost, "bundle": cost}})
    assert "| compact graph | 0.50 s | 0.07 GB | 0.20 GB | 5.00 GB |" in tables
    assert "| whole bundle | 0.50 s | 0.07 GB |  | 5.00 GB |" in tables


def test_all_engines_do_the_same_work(subject: Subject) -> None:
    ids = subject.tokens(33)
    engines = [open_engine(name, subject) for name in ENGINES]
    rows = [engine.fill(ids) for engine in engines]
    for row in rows:
        assert row.shape == (256,)
        np.testing.assert_allclose(row, rows[0], rtol=0, atol=2e-5)
    for engine in engines:
        for past in (20, 5, 32):
            steps = engine.steps(past, 3)
            assert len(steps) == 3
            assert all(0 < step.graph < step.whole for step in steps)
        assert engine.prefill(ids) > 0


def test_each_engine_goes_first_in_its_turn() -> None:
    assert [in_turn("abc", turn) for turn in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_a_footprint_is_taken_in_a_process_of_its_own(subject: Subject) -> None:
    cost = measure_in_process(subject.folder, subject.work, "compact")
    assert 0 < cost.seconds < 60
    assert 0 < cost.anonymous <= cost.anonymous_used < cost.peak < 4e9
    assert list((subject.work / "proofs").iterdir())


def test_a_whole_bundle_has_a_footprint(subject: Subject) -> None:
    assert measure(subject.folder, subject.work, "bundle").seconds > 0


def test_memory_is_what_the_process_holds() -> None:
    before = machine.Memory.now()
    held = np.ones(64 << 20, np.uint8)
    after = machine.Memory.now()
    assert after.anonymous - before.anonymous == pytest.approx(held.nbytes, rel=0.1)
    assert after.peak >= after.resident >= held.nbytes


def test_shares_of_the_processors_time() -> None:
    start = machine.Activity(idle=100, stolen=10, total=1000, own=50.0)
    end = machine.Activity(idle=150, stolen=20, total=1200, own=110.0)
    assert end.since(start) == {"others": 80 / 200, "stolen": 10 / 200}
    assert start.since(start) == {}


def test_a_preset_is_put_beside_links_to_a_bundle(small_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "stale").touch()
    opened = open_bundle(with_preset(small_bundle, tmp_path / "links", 33))
    assert not (tmp_path / "links" / "stale").exists()
    assert opened.voices is not None
    voices = read_voices(opened.voices, num_codes=256)
    assert list(voices.presets) == [PRESET]
    assert len(voices.presets[PRESET].codes) == 33
    assert "en_female_a" in (small_bundle / "voices.json").read_text()
    assert opened.model.read_bytes() == (small_bundle / "model.onnx").read_bytes()


@pytest.mark.parametrize(("kind", "row_bytes"), [("F16", 128), ("Q8_0", 68)])
def test_a_gguf_file_has_the_shape_of_the_bundle(
    subject: Subject, tmp_path: Path, kind: str, row_bytes: int
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, subject.graph(), kind=kind, context_length=2048)
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert (fields["llama.block_count"], fields["llama.vocab_size"]) == (2, 792)
    assert (fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]) == (4, 2)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 2 * 9
    embedding = tensors["token_embd.weight"]
    assert list(embedding.shape) == [64, 792]  # GGUF names the fastest axis first
    assert embedding.n_bytes == 792 * row_bytes
    assert embedding.tensor_type.name == kind
    assert list(tensors["blk.1.attn_k.weight"].shape) == [64, 32]
    assert list(tensors["blk.0.ffn_down.weight"].shape) == [128, 64]
    assert (tensors["output_norm.weight"].data == 1).all()


@pytest.mark.parametrize(("every", "rows"), [("1", 120), ("7", 17)])
def test_parity_is_measured_position_by_position(
    small_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    every: str,
    rows: int,
) -> None:
    figures = tmp_path / "parity.json"
    places = ["--bundle", str(small_bundle), "--cache", str(tmp_path), "--json", str(figures)]
    parity.main([*places, "--positions", "120", "--every", every])
    found = json.loads(figures.read_text())
    assert found["steps"]["rows"] == found["steps"]["same_choice"] == rows
    assert found["prompts"]["rows"] == 1
    assert 0 < found["steps"]["relative"] < found["steps"]["absolute"] < 2e-5
    assert found["greedy"] == 48
    out = capsys.readouterr().out
    assert f"token by token: {rows} positions" in out
    assert "greedy: 48 of 48 tokens equal" in out


def test_a_difference_is_no_parity() -> None:
    close = parity.Worst(5, 1e-5, 1e-6, 3, 10.0, 5)
    assert parity.Parity(close, close, 48).holds
    assert not parity.Parity(replace(close, relative=3e-5), close, 48).holds
    assert not parity.Parity(close, replace(close, relative=3e-5), 48).holds
    assert not parity.Parity(close, close, 47).holds


@pytest.mark.slow
def test_a_bundle_of_random_weights_is_built_once(tmp_path: Path) -> None:
    said: list[str] = []
    folder = random_bundle(tmp_path / "cache", "tiny", said.append)
    bundle = open_bundle(folder)
    subject = Subject.open(folder, tmp_path)
    model = open_language_model(
        bundle.model, rows=subject.rows, context_length=64, settings=subject.settings()
    )
    assert isinstance(model, CompactModel)
    assert said
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    said.clear()
    assert random_bundle(tmp_path / "cache", "tiny", said.append) == folder
    assert not said


def test_the_picture_of_a_sentence_is_drawn_from_what_was_measured(
    small_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "streamed.png"
    places = ["--bundle", str(small_bundle), "--output", str(path)]
    picture.main([*places, "--text", "It rains.", "--rounds", "1"])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "of speech in" in capsys.readouterr().out


def test_blocks_are_heard_when_they_are_ready_and_the_one_before_is_over() -> None:
    second = np.zeros(16_000, np.float32)
    times = [(0.0, 0.5, 0.5), (0.5, 1.0, 1.5), (1.0, 3.0, 3.0)]
    blocks = [picture.TimedBlock(*seconds, second) for seconds in times]
    streamed = picture.Streamed("text", 16_000, blocks)
    assert (streamed.first, streamed.made, streamed.sound) == (0.5, 3.0, 3.0)
    assert streamed.gaps == pytest.approx(0.5)


def test_a_streamed_sentence_is_timed_block_by_block(small_bundle: Path) -> None:
    streamed = picture.stream(Synthesizer.open(open_bundle(small_bundle)), "It rains.", 3)
    free = 0.0
    for before, block in pairwise([None, *streamed.blocks]):
        assert block is not None
        assert block.begun == (before.ready if before else 0.0)
        assert block.begun < block.ready <= block.heard
        assert block.heard == max(block.ready, free)
        free = block.heard + len(block.samples) / streamed.sample_rate
    assert streamed.gaps >= -1e-9
