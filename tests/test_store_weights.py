"""Weights in fewer bytes: what is stored, and what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from scripts.conversion.llasa.store_weights import quantize_rows, store_weights

CODES = np.random.default_rng(3).integers(0, 256, (1, 1, 60))


def decode(path: Path) -> np.ndarray:
    return onnxruntime.InferenceSession(str(path)).run(None, {"codes": CODES})[0][0]


@given(
    arrays(
        np.float32, array_shapes(min_dims=2, max_dims=3), elements=st.floats(-1e3, 1e3, width=32)
    ),
    st.integers(0, 1),
)
def test_a_quantized_weight_is_at_most_half_a_step_off(weights: np.ndarray, axis: int) -> None:
    integers, scale = quantize_rows(weights, axis)
    assert integers.dtype == np.int8
    assert integers.min(initial=0) >= -127
    assert scale.size == weights.shape[axis]
    error = np.abs(integers * scale.astype(np.float64) - weights)
    assert (error <= scale * 0.5001 + 1e-30).all()


@pytest.mark.parametrize(("form", "share", "error"), [("fp16", 0.6, 2e-3), ("int8", 0.4, 0.1)])
def test_the_codec_shrinks_and_sounds_alike(
    small_graphs: Path, tmp_path: Path, form, share: float, error: float
) -> None:
    source, output = small_graphs / "xcodec2_decoder.onnx", tmp_path / "codec.onnx"
    store_weights(source, output, form)
    tables = 2 * 641 * 1280 * 4
    assert output.stat().st_size < share * (source.stat().st_size - tables)
    expected, audio = decode(source), decode(output)
    assert np.abs(audio - expected).max() <= error
    assert np.corrcoef(audio, expected)[0, 1] > 0.995


def test_the_tables_of_the_istft_are_computed_to_the_last_digit_or_so(
    small_graphs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts.conversion.llasa import store_weights as module

    monkeypatch.setattr(module, "SMALLEST", 1 << 40)  # leave all weights, so that only these differ
    source, output = small_graphs / "xcodec2_decoder.onnx", tmp_path / "codec.onnx"
    store_weights(source, output, "fp16")
    names = {tensor.name for tensor in onnx.load(output).graph.initializer}
    assert not names & {"decoder.head.cosine", "decoder.head.sine"}
    assert source.stat().st_size - output.stat().st_size > 6_500_000
    assert np.abs(decode(output) - decode(source)).max() <= 1e-6


@pytest.mark.parametrize(("form", "error"), [("fp16", 0.05), ("int8", 1.0)])
def test_the_language_model_shrinks_with_its_head_and_sidecar(
    small_graphs: Path, tmp_path: Path, form, error: float
) -> None:
    source, output = small_graphs / "deduped" / "model.onnx", tmp_path / "model.onnx"
    store_weights(source, output, form)
    before, after = (p.with_name("model.onnx_data").stat().st_size for p in (source, output))
    assert after < 0.65 * before
    inputs = {
        "input_ids": np.arange(30)[None],
        "attention_mask": np.ones((1, 30), np.int64),
        "position_ids": np.arange(30)[None],
    } | {
        f"past_key_values.{layer}.{side}": np.zeros((1, 2, 0, 16), np.float32)
        for layer in range(2)
        for side in ("key", "value")
    }
    expected, logits = (
        onnxruntime.InferenceSession(str(path)).run(["logits"], inputs)[0]
        for path in (source, output)
    )
    assert 0 < np.abs(logits - expected).max() <= error


def test_matrices_are_scaled_by_output(small_graphs: Path, tmp_path: Path) -> None:
    store_weights(small_graphs / "deduped" / "model.onnx", tmp_path / "model.onnx", "int8")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    assert shapes["model.layers.0.mlp.up_proj.weight:scale"] == [1, 128]  # stored [in, out]
    assert shapes["model.embed_tokens.weight:scale"] == [792, 1]  # looked up by row
    assert "model.norm.weight:int8" not in shapes


def test_onnxruntime_turns_the_weights_back_while_loading(
    small_graphs: Path, tmp_path: Path
) -> None:
    stored, loaded = tmp_path / "codec.onnx", tmp_path / "loaded.onnx"
    store_weights(small_graphs / "xcodec2_decoder.onnx", stored, "int8")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(loaded)
    onnxruntime.InferenceSession(str(stored), options)
    graph = onnx.load(loaded).graph
    assert not {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    assert not [node for node in graph.node if node.name.startswith("dft/")]
    tables = [t for t in graph.initializer if list(t.dims) == [641, 1280]]
    assert len(tables) == 2


def test_the_source_is_not_overwritten(small_graphs: Path) -> None:
    path = small_graphs / "xcodec2_decoder.onnx"
    with pytest.raises(ValueError, match="cannot be rewritten in place"):
        store_weights(path, path, "fp16")
