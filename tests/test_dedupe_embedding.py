"""The head over the embedding: the same bits for fewer bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from scripts.conversion.llasa import onnx_store
from scripts.conversion.llasa.dedupe_embedding import NotTiedError, dedupe_embedding
from scripts.conversion.llasa.export_llm import export_llm


def feeds(batch: int, new: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + new)
    caches = {
        f"past_key_values.{layer}.{side}": rng.normal(size=(batch, 2, past, 16)).astype(np.float32)
        for layer in range(2)
        for side in ("key", "value")
    }
    return {
        "input_ids": rng.integers(0, 792, (batch, new)),
        "attention_mask": np.ones((batch, past + new), np.int64),
        "position_ids": np.tile(np.arange(past, past + new), (batch, 1)),
        **caches,
    }


@pytest.mark.parametrize(("batch", "new", "past"), [(1, 30, 0), (1, 1, 30), (2, 7, 0), (2, 1, 7)])
def test_logits_are_bit_identical(small_graphs: Path, batch: int, new: int, past: int) -> None:
    inputs = feeds(batch, new, past)
    separate, deduped = (
        onnxruntime.InferenceSession(str(small_graphs / kind / "model.onnx")).run(None, inputs)
        for kind in ("separate", "deduped")
    )
    for one, other in zip(separate, deduped, strict=True):
        assert one.shape == other.shape
        assert np.array_equal(one, other)


def test_the_head_is_reshape_gemm_unsqueeze_over_the_embedding(small_graphs: Path) -> None:
    graph = onnx.load(small_graphs / "deduped" / "model.onnx", load_external_data=False).graph
    reshape, gemm, unsqueeze = list(graph.node)[-3:]
    assert [n.op_type for n in (reshape, gemm, unsqueeze)] == ["Reshape", "Gemm", "Unsqueeze"]
    lookup = next(node for node in graph.node if "input_ids" in node.input[1:])
    assert gemm.input[1] == lookup.input[0]
    assert {item.name: item.i for item in gemm.attribute}["transB"] == 1
    assert unsqueeze.output[0] == "logits"


def test_one_matrix_less_is_stored(small_graphs: Path) -> None:
    before, after = (
        (small_graphs / kind / "model.onnx_data").stat().st_size for kind in ("separate", "deduped")
    )
    assert abs(before - after - 792 * 64 * 4) < 4096  # and the padding of one page


def test_weights_inside_the_graph_stay_inside(small_checkpoints: Path, tmp_path: Path) -> None:
    export_llm(small_checkpoints / "llm", tmp_path / "a.onnx", external=False)
    dedupe_embedding(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]
    inputs = feeds(1, 9, 0)
    one, other = (
        onnxruntime.InferenceSession(str(tmp_path / name)).run(["logits"], inputs)[0]
        for name in ("a.onnx", "b.onnx")
    )
    assert np.array_equal(one, other)


def test_a_head_that_differs_in_one_number_is_refused(small_graphs: Path, tmp_path: Path) -> None:
    source = tmp_path / "separate"
    source.mkdir()
    for name in ("model.onnx", "model.onnx_data"):
        (source / name).write_bytes((small_graphs / "separate" / name).read_bytes())
    model = onnx.load(source / "model.onnx", load_external_data=False)
    head = next(tensor for tensor in model.graph.initializer if tensor.name == "lm_head.weight")
    offset = int({item.key: item.value for item in head.external_data}["offset"])
    with (source / "model.onnx_data").open("r+b") as file:
        file.seek(offset + 4 * 1000)
        file.write(b"\0\0\0\0")
    with pytest.raises(NotTiedError, match="differ in 1 numbers"):
        dedupe_embedding(source / "model.onnx", tmp_path / "out" / "model.onnx")
    assert not (tmp_path / "out").exists()


def test_a_head_of_another_shape_is_refused() -> None:
    from scripts.conversion.llasa.dedupe_embedding import require_transposes

    with pytest.raises(NotTiedError, match="not transposes"):
        require_transposes(np.zeros((5, 4), np.float32), np.zeros((5, 4), np.float32))


def test_a_deduped_graph_has_nothing_more_to_share(small_graphs: Path, tmp_path: Path) -> None:
    with pytest.raises(NotTiedError, match="logits come from Unsqueeze"):
        dedupe_embedding(small_graphs / "deduped" / "model.onnx", tmp_path / "model.onnx")


def test_the_source_is_not_overwritten(small_graphs: Path) -> None:
    path = small_graphs / "separate" / "model.onnx"
    before = path.read_bytes()
    with pytest.raises(ValueError, match="cannot be rewritten in place"):
        dedupe_embedding(path, path)
    assert path.read_bytes() == before


def test_a_failure_while_writing_leaves_the_old_files(
    small_graphs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "model.onnx"
    output.write_bytes(b"old graph")
    output.with_name("model.onnx_data").write_bytes(b"old weights")
    blocks, written = onnx_store._blocks, []

    def until_full(tensor: onnx.TensorProto, values: np.ndarray):
        if written:
            raise OSError(28, "No space left on device")
        written.append(tensor.name)
        return blocks(tensor, values)

    monkeypatch.setattr(onnx_store, "_blocks", until_full)
    with pytest.raises(OSError, match="No space left"):
        dedupe_embedding(small_graphs / "separate" / "model.onnx", output)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "model.onnx": b"old graph",
        "model.onnx_data": b"old weights",
    }
