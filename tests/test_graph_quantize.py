"""Matrices as integers: what onnxruntime reads back, and what the gate says of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graph_models import LIKE_1B, Published, export_legacy, random_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.graph.compare import (
    QUANTIZED,
    Limits,
    RowDecoder,
    Rows,
    Verdict,
    greedy_path,
    judge,
    record_trials,
)
from phoonnx_llasa.graph.quantize import (
    FORMS,
    Form,
    check_packing,
    pack_blocks,
    pack_outputs,
    quantize_graph,
)

PROMPTS = {"one": [5, 17, 250, 3, 99, 41, 7], "two": [280, 1, 64, 64, 12]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from scripts.conversion.llasa.dedupe_embedding import dedupe_embedding

    folder = tmp_path_factory.mktemp("llama")
    # Peaked enough to have an opinion, as a trained model has.
    llama = random_llama(LIKE_1B)
    llama.model.norm.weight.data *= 2
    path = export_legacy(llama, folder / "exported")
    dedupe_embedding(path, folder / "deduped" / "model.onnx")
    return folder / "deduped" / "model.onnx"


@pytest.fixture(scope="module")
def variants(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("variants")
    paths = {name: folder / name / "model.onnx" for name in FORMS}
    for name, path in paths.items():
        assert quantize_graph(source, path, FORMS[name]) == 14
    return paths


def verdict_of(
    source: Path, candidate: RowDecoder, *, steps: int, limits: Limits = QUANTIZED
) -> Verdict:
    return judge(record_trials(Published(source), PROMPTS, steps=steps), candidate, limits=limits)


def damage(source: Path, folder: Path, change) -> Path:
    """A copy of a graph whose tensors are changed: ``change(name, array) -> array``."""
    folder.mkdir(parents=True)
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        changed = change(tensor.name, array.copy())
        if not np.array_equal(changed, array):
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("name", FORMS)
def test_onnxruntime_reads_the_weights_back(
    source: Path, variants: dict[str, Path], name: str
) -> None:
    packing = check_packing(source, variants[name])
    assert packing.right
    assert packing.matrices == 14
    rounding = 0.502 if FORMS[name].block_size is None else 1.0
    assert 0.4 < packing.worst_steps <= rounding + 0.002
    assert packing.relative_error < {8: 0.015, 4: 0.12}[FORMS[name].bits]


@pytest.mark.parametrize("name", FORMS)
def test_the_files_shrink_and_only_the_matrices_change(
    source: Path, variants: dict[str, Path], name: str
) -> None:
    old, new = onnx.load(source), onnx.load(variants[name])
    onnx.checker.check_model(str(variants[name]))
    before = {t.name: numpy_helper.to_array(t) for t in old.graph.initializer}
    after = {t.name: numpy_helper.to_array(t) for t in new.graph.initializer}
    kept = before.keys() & after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in kept)
    assert sum("integers" in key for key in after) == 14
    matrices = sum(array.nbytes for key, array in before.items() if key not in kept)
    integers = sum(array.nbytes for key, array in after.items() if key not in kept)
    # Blocks of 128 are half empty here, where a row has 64 inputs.
    assert integers < matrices / {"nbits4": 6, "nbits8": 2}.get(name, 3)


def test_what_the_gate_says_of_each_form(source: Path, variants: dict[str, Path]) -> None:
    verdicts = {
        name: verdict_of(source, Published(path), steps=24) for name, path in variants.items()
    }
    assert verdicts["nbits8"].passed, verdicts["nbits8"].reasons
    assert not verdicts["nbits4"].passed
    divergence = {
        name: max(figures["kl_mean"] for figures in verdict.figures.values())
        for name, verdict in verdicts.items()
    }
    assert max(divergence["nbits8"], divergence["int8-output"]) < divergence["nbits4"]
    assert divergence["int8-output"] <= divergence["int8-tensor"]


def test_a_graph_written_anew_passes_without_a_difference(source: Path, tmp_path: Path) -> None:
    anew = tmp_path / "anew" / "model.onnx"
    anew.parent.mkdir()
    onnx.save(onnx.load(source), anew)
    nothing = Limits(max_abs=0.0, kl_mean=0.0, greedy_agreement=1.0, top_p_overlap=1.0)
    verdict = verdict_of(source, Published(anew), steps=12, limits=nothing)
    assert verdict.passed
    assert set(verdict.figures) == {
        "one, greedy",
        "one, sampled",
        "two, greedy",
        "two, sampled",
    }


DAMAGE = {
    "one scale is half": lambda name, a: a / 2 if name.endswith("5.scales") else a,
    "halves of a byte change places": (
        lambda name, a: (a >> 4) | (a << 4) if name.endswith(".integers") else a
    ),
    "blocks in the wrong order": lambda name, a: a[:, ::-1] if name.endswith(".integers") else a,
    "outputs in the wrong order": lambda name, a: a[::-1] if name.endswith(".scales") else a,
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_fault_in_the_packing_is_found_and_rejected(
    source: Path, variants: dict[str, Path], tmp_path: Path, case: str
) -> None:
    change = DAMAGE[case]
    if case == "one scale is half":
        names = [t.name for t in onnx.load(variants["nbits8"]).graph.initializer]
        victim = next(name for name in names if name.endswith(".scales"))
        change = lambda name, a: a / 2 if name == victim else a  # noqa: E731
    good = variants["nbits4" if "byte" in case else "nbits8"]
    bad = damage(good, tmp_path / "bad", change)
    packing = check_packing(source, bad)
    assert not packing.right
    assert packing.worst_steps > 2
    assert packing.worst
    if case != "one scale is half":
        assert not verdict_of(source, Published(bad), steps=12).passed


@pytest.mark.parametrize("factor", [1.3, np.nan])
def test_a_damaged_float_graph_is_rejected(source: Path, tmp_path: Path, factor: float) -> None:
    names = [t.name for t in onnx.load(source).graph.initializer if list(t.dims) == [64, 160]]
    bad = damage(source, tmp_path / "bad", lambda name, a: a * factor if name == names[0] else a)
    verdict = verdict_of(source, Published(bad), steps=12)
    assert not verdict.passed
    assert all(reason.split(":")[0] in verdict.figures for reason in verdict.reasons)


def test_the_gate_counts_the_likeliest_token_on_the_greedy_path_only(source: Path) -> None:
    class Mirror(Published):
        """Keeps the probabilities but for the two likeliest tokens, which it swaps."""

        def feed(self, ids):
            row = super().feed(ids).copy()
            first, second = np.argsort(-row)[:2]
            row[[first, second]] = row[[second, first]]
            return row

    limits = Limits(greedy_agreement=0.5)
    verdict = verdict_of(source, Mirror(source), steps=6, limits=limits)
    assert [reason.split(": ")[0] for reason in verdict.reasons] == ["one, greedy", "two, greedy"]


def test_only_rows_that_count_are_judged(source: Path) -> None:
    whole, part = Published(source), Rows(Published(source), 100, 149)
    assert part.row_offset == 100
    np.testing.assert_array_equal(part.feed([1, 2]), whole.feed([1, 2])[100:150])
    assert all(100 <= token < 150 for token in greedy_path(part, [1, 2], 8))
    with pytest.raises(ParameterError, match="first"):
        Rows(whole, 5, 4)
    with pytest.raises(ParameterError, match="at least one"):
        record_trials(whole, {})


def test_the_head_is_quantized_when_asked_for(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "with_head" / "model.onnx"
    assert quantize_graph(source, path, FORMS["nbits8"], head=True) == 15
    assert check_packing(source, path).matrices == 15
    assert verdict_of(source, Published(path), steps=12, limits=QUANTIZED).passed
    output = tmp_path / "int8" / "model.onnx"
    assert quantize_graph(source, output, FORMS["int8-output"], head=True) == 15
    assert check_packing(source, output).right


def test_a_links_sidecar_is_found(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "links" / "model.onnx"
    link.parent.mkdir()
    link.symlink_to(source)
    output = tmp_path / "out" / "model.onnx"
    assert quantize_graph(link, output, FORMS["nbits8"]) == 14
    assert check_packing(link, output).right


def test_what_cannot_be_quantized_is_refused(
    source: Path, variants: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(GraphError, match="no float32 matrix"):
        quantize_graph(variants["nbits8"], tmp_path / "model.onnx", FORMS["nbits4"])
    with pytest.raises(ParameterError, match="another file"):
        quantize_graph(source, source, FORMS["nbits4"])
    (tmp_path / "text.onnx").write_text("no graph")
    with pytest.raises(GraphError, match="not a readable"):
        quantize_graph(tmp_path / "text.onnx", tmp_path / "model.onnx", FORMS["nbits4"])
    assert not (tmp_path / "model.onnx").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "options", [{"bits": 4}, {"bits": 3, "block_size": 32}, {"bits": 8, "block_size": 48}]
)
def test_a_form_that_no_kernel_has_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Form(**options)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(4, 16), (4, 32), (8, 32), (8, 128)]),
    st.integers(1, 6),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
)
def test_blocks_are_unpacked_by_the_kernel_as_they_were_packed(
    kind: tuple[int, int], num_outputs: int, num_inputs: int, seed: int
) -> None:
    bits, block_size = kind
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 1, (num_outputs, num_inputs)).astype(np.float32)
    weights[:, ::7] *= 10
    weights[0] = 0
    integers, scales = pack_blocks(weights, bits, block_size)
    found = run_one(
        "MatMulNBits",
        {"integers": integers, "scales": scales},
        num_inputs,
        num_outputs,
        {"K": num_inputs, "N": num_outputs, "bits": bits, "block_size": block_size},
    )
    steps = np.repeat(np.abs(scales), block_size, axis=1)[:, :num_inputs]
    difference = np.abs(found.T - weights)
    assert (difference <= 1.001 * steps).all()
    # Only what lies beyond the last integer on the far side is off by more than rounding.
    near = weights / np.repeat(scales, block_size, axis=1)[:, :num_inputs] <= 2 ** (bits - 1) - 1
    assert (difference <= 0.501 * steps)[near].all()
    assert (found[:, 0] == 0).all()


@pytest.mark.parametrize("per_output", [True, False])
def test_outputs_are_unpacked_by_the_kernel_as_they_were_packed(per_output: bool) -> None:
    weights = np.random.default_rng(0).normal(0, 1, (5, 48)).astype(np.float32)
    weights[2] = 0
    integers, scales = pack_outputs(weights, per_output=per_output)
    assert scales.shape == ((5,) if per_output else ())
    arrays = {"integers": integers, "scales": scales}
    found = run_one("DynamicQuantizeMatMul", arrays, 48, 5, {})
    difference = np.abs(found.T - weights)
    assert (difference.T / scales).max() <= 0.502


def run_one(op_type: str, arrays, num_inputs: int, num_outputs: int, options) -> np.ndarray:
    node = helper.make_node(op_type, ["rows", *arrays], ["out"], domain="com.microsoft", **options)
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "one",
        [make("rows", TensorProto.FLOAT, ["n", num_inputs])],
        [make("out", TensorProto.FLOAT, ["n", num_outputs])],
        [
            numpy_helper.from_array(np.array(value, order="C"), name)
            for name, value in arrays.items()
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"rows": np.eye(num_inputs, dtype=np.float32)})[0]


def test_variants_stay_whole_when_moved(variants: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(variants["nbits4"].parent, tmp_path / "moved")
    moved, there = Published(tmp_path / "moved" / "model.onnx"), Published(variants["nbits4"])
    np.testing.assert_array_equal(moved.feed([1, 2, 3]), there.feed([1, 2, 3]))
