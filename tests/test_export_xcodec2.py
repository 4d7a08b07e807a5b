"""The exported codec against transformers on the same checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from scripts.conversion.llasa.checkpoint import CheckpointError
from scripts.conversion.llasa.export_xcodec2 import (
    RealISTFTHead,
    export_codec,
    inverse_real_dft,
    load_decoder,
)


@pytest.fixture(scope="module")
def session(small_graphs: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(small_graphs / "xcodec2_decoder.onnx"))


@pytest.fixture(scope="module")
def native(small_checkpoints: Path):
    return load_decoder(small_checkpoints / "xcodec2")


def random_codes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (1, 1, count))


def test_the_signature_is_the_contract(session: onnxruntime.InferenceSession) -> None:
    (codes,), (audio,) = session.get_inputs(), session.get_outputs()
    assert (codes.name, codes.type, codes.shape) == ("codes", "tensor(int64)", [1, 1, "num_codes"])
    assert (audio.name, audio.type, audio.shape) == ("audio", "tensor(float)", [1, "num_samples"])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 50, 333])
def test_any_number_of_codes_sounds_as_in_torch(count: int, session, native) -> None:
    codes = random_codes(count)
    audio = session.run(None, {"codes": codes})[0]
    with torch.no_grad():
        expected = native(torch.from_numpy(codes)).numpy()
    assert audio.shape == expected.shape == (1, 320 * count)
    assert np.abs(audio - expected).max() <= 1e-4
    assert np.corrcoef(audio[0], expected[0])[0, 1] > 0.99999
    assert 0.02 < audio.std() < 0.4  # sound, neither silence nor clipping
    assert np.abs(audio).max() < 1.0


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_the_real_istft_is_the_complex_one(count: int, native) -> None:
    head = native.decoder.head
    hidden = torch.randn(1, count, 64, generator=torch.Generator().manual_seed(count))
    with torch.no_grad():
        expected, real = head(hidden), RealISTFTHead(head)(hidden)
    assert real.shape == expected.shape == (1, 1, 320 * count)
    assert (real - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("n_fft", [4, 10, 1280])
def test_the_dft_matrices_invert_the_real_dft(n_fft: int) -> None:
    signal = np.random.default_rng(0).normal(size=n_fft)
    spectrum = np.fft.rfft(signal)
    cosine, sine = inverse_real_dft(n_fft)
    assert np.abs(spectrum.real @ cosine + spectrum.imag @ sine - signal).max() < 1e-12


def test_the_last_code_is_heard(session: onnxruntime.InferenceSession) -> None:
    codes = random_codes(30)
    other = codes.copy()
    other[0, 0, -1] ^= 0x55
    one, two = (session.run(None, {"codes": each})[0] for each in (codes, other))
    changed = np.abs(one - two)[0]
    assert changed[-320:].max() > 3 * changed[:3200].max()


def test_a_checkpoint_in_the_authors_layout_sounds_the_same(
    small_checkpoints: Path, tmp_path: Path, native
) -> None:
    source = load_file(small_checkpoints / "xcodec2" / "model.safetensors")
    save_file(authors_names(source), tmp_path / "model.safetensors")
    codes = torch.from_numpy(random_codes(20))
    with torch.no_grad():
        assert (load_decoder(tmp_path)(codes) - native(codes)).abs().max() <= 1e-6


def authors_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of transformers' Xcodec2Model as XCodec2Model of PyPI xcodec2 names them."""
    named: dict[str, torch.Tensor] = {"CodecEnc.unused": torch.zeros(1)}
    layer = "acoustic_decoder.layers."
    for name, weight in weights.items():
        end = name.rsplit(".", 1)[1]
        if name.startswith("quantizer."):
            named["generator." + name] = weight
        elif name.startswith("acoustic_decoder.fc."):
            named[f"fc_post_a.{end}"] = weight
        elif name.startswith("acoustic_decoder.head.linear"):
            named[f"generator.head.out.{end}"] = weight
        elif name.startswith("acoustic_decoder.norm."):
            named[f"generator.backbone.final_layer_norm.{end}"] = weight
        elif not name.startswith(layer):
            named[name.replace("acoustic_decoder.", "generator.backbone.")] = weight
    for index in range(2):
        old, new = f"{layer}{index}.", f"generator.backbone.transformers.{index}."
        named[new + "att_norm.weight"] = weights[old + "input_layernorm.weight"]
        named[new + "ffn_norm.weight"] = weights[old + "post_attention_layernorm.weight"]
        named[new + "att.c_proj.weight"] = weights[old + "self_attn.o_proj.weight"]
        named[new + "mlp.fc1.weight"] = weights[old + "mlp.fc1.weight"]
        named[new + "mlp.fc2.weight"] = weights[old + "mlp.fc2.weight"]
        # One head of 64: rows 0, 32, 1, 33, ... put the halves of a rotary pair side by side.
        pairs = torch.arange(64).reshape(2, 32).T.reshape(-1)
        projections = [weights[f"{old}self_attn.{side}_proj.weight"] for side in "qkv"]
        projections[:2] = [projection[pairs] for projection in projections[:2]]
        named[new + "att.c_attn.weight"] = torch.cat(projections)
    return {name: weight.clone() for name, weight in named.items()}


def test_the_weights_are_not_repeated_in_the_graph(small_graphs: Path, native) -> None:
    model = onnx.load(small_graphs / "xcodec2_decoder.onnx")
    stored = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    weights = sum(weight.numel() for weight in native.parameters())
    tables = 2 * 641 * 1280
    assert stored < weights + tables + 20_000


def test_a_missing_tensor_is_named(small_checkpoints: Path, tmp_path: Path) -> None:
    source, folder = small_checkpoints / "xcodec2", tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = load_file(source / "model.safetensors")
    weights.pop("acoustic_decoder.head.linear.bias")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor acoustic_decoder\.head\.linear\.bias"):
        export_codec(folder, tmp_path / "codec.onnx")
    assert not (tmp_path / "codec.onnx").exists()


def test_a_tensor_of_another_size_is_named(small_checkpoints: Path, tmp_path: Path) -> None:
    source, folder = small_checkpoints / "xcodec2", tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = load_file(source / "model.safetensors")
    weights["quantizer.project_out.weight"] = torch.zeros(128, 8)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"project_out\.weight is \[128, 8\].*\[128, 4\]"):
        export_codec(folder, tmp_path / "codec.onnx")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no \\*\\.safetensors"):
        load_decoder(tmp_path)
