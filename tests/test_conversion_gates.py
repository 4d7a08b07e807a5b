"""The parity gates pass what is right and fail what was damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

from phoonnx_llasa.errors import UnreadableTextError
from scripts.conversion.llasa import gate_quantized, parity_codec, parity_llm, prompts
from scripts.conversion.llasa.onnx_store import DATA_SUFFIX
from scripts.conversion.llasa.prompts import read_prompts
from scripts.conversion.llasa.report import Report, read_report


def change_tensor(source: Path, target: Path, name: str, change) -> Path:
    """A copy of a graph, weights inside, with one initializer changed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    model = onnx.load(source)
    (tensor,) = (each for each in model.graph.initializer if each.name == name)
    array = numpy_helper.to_array(tensor).copy()
    tensor.CopyFrom(numpy_helper.from_array(change(array), name))
    onnx.save(model, target)
    return target


@pytest.fixture(scope="module")
def model(small_graphs: Path) -> Path:
    return small_graphs / "deduped" / "model.onnx"


@pytest.fixture(scope="module")
def codec(small_graphs: Path) -> Path:
    return small_graphs / "xcodec2_decoder.onnx"


def test_the_language_model_is_the_checkpoints(
    small_checkpoints: Path, model: Path, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "reports" / "parity.json"
    arguments = [str(small_checkpoints / "llm"), str(model), "--json", str(path), "--steps", "12"]
    assert parity_llm.main(arguments) == 0
    assert "parity_llm: passed" in capsys.readouterr().out
    report = read_report(path)
    assert report.passed
    assert [row["prompt"] for row in report.rows] == ["en", "zh"]
    for row in report.rows:
        assert row["tokens"] > 50
        assert 0 < row["prefill max"] < 1e-4
        assert 0 < row["decode mean"] < row["decode max"] < 1e-4
        assert row["greedy"] == "12/12"
    record = json.loads(path.read_text())
    assert record["limits"]["max_abs"] == 1e-3
    assert {"onnxruntime", "torch", "transformers"} <= record["versions"].keys()


LLM_DAMAGE = {
    "a projection": ("layers.1.mlp.down_proj.weight", lambda a: a * 1.02),
    "heads in another order": ("layers.0.self_attn.q_proj.weight", lambda a: a[:, ::-1]),
    "a norm": ("norm.weight", lambda a: a + 0.01),
    "no number": ("layers.0.self_attn.v_proj.weight", lambda a: a * np.nan),
}


@pytest.mark.parametrize("case", LLM_DAMAGE)
def test_a_damaged_language_model_fails(
    small_checkpoints: Path, model: Path, tmp_path: Path, capsys, case: str
) -> None:
    ending, change = LLM_DAMAGE[case]
    names = [tensor.name for tensor in onnx.load(model).graph.initializer]
    name = next(name for name in names if name.endswith(ending))
    bad = change_tensor(model, tmp_path / "model.onnx", name, change)
    path = tmp_path / "parity.json"
    arguments = [str(small_checkpoints / "llm"), str(bad), "--json", str(path), "--steps", "4"]
    assert parity_llm.main(arguments) == 1
    assert "parity_llm: FAILED" in capsys.readouterr().out
    report = read_report(path)
    assert not report.passed
    assert all(reason.startswith(("en: ", "zh: ")) for reason in report.reasons)


def test_a_checkpoint_without_a_weight_is_no_reference(
    small_checkpoints: Path, model: Path, tmp_path: Path, capsys
) -> None:
    folder = tmp_path / "llm"
    shutil.copytree(small_checkpoints / "llm", folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit) as status:
        parity_llm.main([str(folder), str(model)])
    assert status.value.code == 2
    assert "no tensor model.layers.0.mlp.up_proj.weight" in capsys.readouterr().err


def test_the_codec_is_the_checkpoints(
    small_checkpoints: Path, codec: Path, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "parity.json"
    assert (
        parity_codec.main([str(small_checkpoints / "xcodec2"), str(codec), "--json", str(path)])
        == 0
    )
    assert "parity_codec: passed" in capsys.readouterr().out
    whole, istft = read_report(path).rows
    assert whole["samples"] == istft["samples"] == 400 * 320
    assert whole["max"] < 1e-4
    assert whole["reference RMS"] == pytest.approx(0.15, abs=0.02)
    assert whole["correlation"] > 0.999999
    assert istft["max"] < 1e-5


CODEC_DAMAGE = {
    "the ISTFT's cosines": ("decoder.head.cosine", lambda a: a * 1.01),
    "a phase turned": ("decoder.head.sine", lambda a: -a),
    "a bias": ("decoder.head.linear.bias", lambda a: a + 0.01),
    "no number": ("decoder.head.linear.bias", lambda a: a * np.nan),
    "silence": ("decoder.head.linear.bias", lambda a: a - 100),
}


@pytest.mark.parametrize("case", CODEC_DAMAGE)
def test_a_damaged_codec_fails(
    small_checkpoints: Path, codec: Path, tmp_path: Path, capsys, case: str
) -> None:
    bad = change_tensor(codec, tmp_path / "codec.onnx", *CODEC_DAMAGE[case])
    arguments = [str(small_checkpoints / "xcodec2"), str(bad), "--codes", "30"]
    assert parity_codec.main(arguments) == 1
    assert "- ONNX, transformers: " in capsys.readouterr().out


def test_sounds_are_told_apart() -> None:
    limits = parity_codec.SoundLimits()
    sound = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    compare = parity_codec.compare_sounds
    assert compare("x", sound, sound, limits)[1] == []
    assert compare("x", sound, sound[1:], limits)[1] == ["x: 15999 samples instead of 16000"]
    late = np.roll(sound, 1)
    assert len(compare("x", sound, late, limits)[1]) == 3
    click = sound.copy()
    click[500] += 1e-3
    assert [reason[:6] for reason in compare("x", sound, click, limits)[1]] == ["x: max"]
    silence = np.zeros(100, np.float32)
    assert "silent" in compare("x", silence, silence, limits)[1][0]


def test_variants_are_built_and_surveyed(
    small_checkpoints: Path, model: Path, tmp_path: Path, capsys
) -> None:
    path, work = tmp_path / "gate.json", tmp_path / "variants"
    arguments = [
        str(model),
        *("--tokenizer", str(small_checkpoints / "llm" / "tokenizer.json")),
        *("--json", str(path), "--work", str(work), "--steps", "12"),
    ]
    assert gate_quantized.main(arguments) == 0
    rows = {row["form"]: row for row in read_report(path).rows}
    assert rows.keys() == {"int8-tensor", "int8-output", "nbits8", "nbits4"}
    assert rows["nbits8"]["passed"]
    assert not rows["nbits4"]["passed"]
    assert rows["nbits8"]["KL mean"] < rows["nbits4"]["KL mean"] / 10
    assert all((work / name / "model.onnx").is_file() for name in rows)

    assert gate_quantized.main([*arguments, "--form", "nbits4"]) == 1
    assert "- nbits4: en, greedy: " in capsys.readouterr().out
    (row,) = read_report(path).rows
    assert row["form"] == "nbits4"


def test_a_graph_from_elsewhere_is_judged(
    small_checkpoints: Path, small_graphs: Path, model: Path, tmp_path: Path, capsys
) -> None:
    separate = small_graphs / "separate" / "model.onnx"
    arguments = [
        str(model),
        *("--tokenizer", str(small_checkpoints / "llm" / "tokenizer.json"), "--steps", "8"),
    ]
    assert gate_quantized.main([*arguments, "--candidate", str(separate)]) == 0
    name = next(
        tensor.name
        for tensor in onnx.load(model).graph.initializer
        if tensor.name.endswith("layers.1.self_attn.o_proj.weight")
    )
    bad = change_tensor(model, tmp_path / "bad.onnx", name, lambda a: -a)
    assert gate_quantized.main([*arguments, "--candidate", str(bad)]) == 1
    assert f"- {bad.parent.name}/bad.onnx: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as status:
        gate_quantized.main([*arguments, "--candidate", str(tmp_path / "none.onnx")])
    assert status.value.code == 2


def test_a_fault_in_the_packing_fails_the_gate(
    small_checkpoints: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    pack = gate_quantized.quantize_graph

    def pack_wrongly(source: Path, output: Path, form, *, head: bool) -> int:
        count = pack(source, output, form, head=head)
        graph = onnx.load(output).graph
        name = next(t.name for t in graph.initializer if t.name.endswith(".integers"))
        change_tensor(output, output.with_name("changed.onnx"), name, lambda a: a[::-1])
        output.with_name("changed.onnx").replace(output)
        output.with_name(output.name + DATA_SUFFIX).unlink()
        return count

    monkeypatch.setattr(gate_quantized, "quantize_graph", pack_wrongly)
    tokenizer = str(small_checkpoints / "llm" / "tokenizer.json")
    path = tmp_path / "gate.json"
    arguments = [str(model), "--tokenizer", tokenizer, "--steps", "4", "--json", str(path)]
    assert gate_quantized.main(arguments) == 1
    assert "nbits8: the packing is wrong" in capsys.readouterr().out


def test_prompts_are_speech_where_the_tokenizer_knows_it(small_checkpoints: Path) -> None:
    tokenizer = small_checkpoints / "llm" / "tokenizer.json"
    prompts = read_prompts(tokenizer)
    assert prompts.speech == (512 + 16 + 5, 791)
    assert prompts.ids.keys() == {"en", "zh"}
    short = read_prompts(tokenizer, template="<|TEXT_UNDERSTANDING_START|>{text}")
    assert len(short.ids["zh"]) < len(prompts.ids["zh"]) - 20


def test_a_sentence_that_a_voice_of_one_language_cannot_read_is_left_out(demo_bundle: Path) -> None:
    assert read_prompts(demo_bundle / "tokenizer.json").ids.keys() == {"en"}


def test_nothing_that_a_voice_reads_is_an_error(demo_bundle: Path, monkeypatch) -> None:
    monkeypatch.delitem(prompts.SENTENCES, "en")
    with pytest.raises(UnreadableTextError):
        read_prompts(demo_bundle / "tokenizer.json")


def test_a_report_comes_back_as_it_was_written(tmp_path: Path, capsys) -> None:
    rows = [{"what": "a|b", "max": 1.234e-5, "n": 12, "passed": True, "p": 0.98765, "z": 0.0}]
    report = Report("gate", "Title", rows, ["a: too large"], {"max": 1e-6}, "A note.")
    report.write(tmp_path / "new" / "report.json")
    assert read_report(tmp_path / "new" / "report.json") == report
    assert report.table().splitlines()[-1] == "| a\\|b | 1.2e-05 | 12 | yes | 0.988 | 0 |"
    assert report.text().endswith("gate: FAILED\n- a: too large")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="no report"):
        read_report(tmp_path / "other.json")
