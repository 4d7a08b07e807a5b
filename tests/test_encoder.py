"""Recording -> codes -> preset, on an XCodec2 of random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

from phoonnx_llasa.encoder import (
    ENCODER_FILE,
    Encoder,
    find_encoder,
    open_encoder,
    preset_from_clip,
)
from phoonnx_llasa.errors import BundleError, GraphError, ParameterError
from scripts.conversion.llasa import export_xcodec2_encoder
from scripts.conversion.llasa.checkpoint import CheckpointError

RATE = 16_000
PRESET = {
    "sample_rate": RATE,
    "name": "mine",
    "text": "What I said.",
    "lang": "en",
    "num_codes": 256,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import Wav2Vec2BertConfig, Xcodec2Config, Xcodec2Model

    folder = tmp_path_factory.mktemp("xcodec2")
    semantic = Wav2Vec2BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    config = Xcodec2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        semantic_model_config=semantic,
        quantization_dim=96,
        quantization_levels=[4] * 4,
        encoder_hidden_size=4,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = Xcodec2Model(config)
        # A training start makes all codes alike: wider weights, so that the sound gets through.
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.data.normal_(0, 1.5 / weight[0].numel() ** 0.5)
        # Both ways in equally loud, so that neither drowns the other.
        sound = speechlike(2.0)
        model.eval()
        with torch.no_grad():
            acoustic = model.acoustic_encoder(torch.from_numpy(padded(sound))[None, None])
            features = torch.from_numpy(features_of_transformers(sound))
            semantic = model.semantic_encoder(features).last_hidden_state.transpose(1, 2)
            semantic = model.semantic_adapter(semantic)
        model.acoustic_encoder.conv2.weight.data /= acoustic.std()
        model.semantic_adapter.conv4.weight.data /= semantic.std()
        model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def path(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    assert export_xcodec2_encoder.main([str(checkpoint), str(folder)]) == 0
    return folder / ENCODER_FILE


@pytest.fixture(scope="module")
def encoder(path: Path) -> Encoder:
    return open_encoder(path)


def speechlike(seconds: float, *, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * f * time + rng.uniform(0, 6)) for f in (140, 700, 2300, 5100))
    envelope = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * time)
    return (0.05 * envelope * tones + rng.normal(0, 0.01, len(time))).astype(np.float32)


def padded(samples: np.ndarray) -> np.ndarray:
    """As the checkpoint's own feature extractor pads: one zero, then up to a whole code."""
    longer = np.pad(samples, (0, 1))
    return np.pad(longer, (0, -len(longer) % 320))


def features_of_transformers(samples: np.ndarray) -> np.ndarray:
    """By the numpy filterbank that w2v-BERT came with; float32 [1, frames / 2, 160]."""
    from transformers import SeamlessM4TFeatureExtractor

    waveform = np.pad(padded(samples), (160, 160))
    extractor = SeamlessM4TFeatureExtractor()
    return extractor(waveform, sampling_rate=RATE, return_tensors="np")["input_features"]


@pytest.mark.parametrize("seconds", [1.0, 1.2345, 3.0])
def test_the_filterbank_is_the_one_that_was_trained_on(seconds: float) -> None:
    import torch

    samples = speechlike(seconds) + np.float32(0.01)  # with an offset, which has to go
    with torch.no_grad():
        found = export_xcodec2_encoder.Filterbank()(torch.from_numpy(padded(samples))[None])
    expected = features_of_transformers(samples)
    assert found.shape == expected.shape == (1, len(padded(samples)) // 320, 160)
    assert np.abs(found.numpy() - expected).max() < 2e-3


@pytest.mark.parametrize("seconds", [1.0, 1.2345, 4.0])
def test_the_codes_are_those_of_transformers(
    checkpoint: Path, encoder: Encoder, seconds: float
) -> None:
    import torch
    from transformers import Xcodec2Model

    samples = speechlike(seconds, seed=3)
    model = Xcodec2Model.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        expected = model.encode(
            torch.from_numpy(padded(samples))[None, None],
            torch.from_numpy(features_of_transformers(samples)),
        ).audio_codes.numpy()
    codes = encoder.encode(samples)
    assert len(codes) == -(-len(samples) // 320)
    expected = expected.reshape(-1)[: len(codes)]
    assert len(set(expected.tolist())) > 5  # or there would be nothing to see
    # A value on the border between two levels may fall to either side.
    assert np.mean(np.array(codes) == expected) >= 0.97


def test_every_part_has_a_say(encoder: Encoder, path: Path, tmp_path: Path) -> None:
    samples = speechlike(2.0)
    codes = encoder.encode(samples)
    for word in (
        "filterbank.mel",
        "semantic_adapter.conv4.weight",
        "acoustic_encoder.conv2.weight",
    ):
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            if word in tensor.name:
                array = -1.5 * numpy_helper.to_array(tensor) + 0.3
                tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
                break
        else:
            pytest.fail(f"no {word} among the weights")
        onnx.save(model, tmp_path / ENCODER_FILE)
        assert open_encoder(tmp_path / ENCODER_FILE).encode(samples) != codes


def test_a_preset_of_a_recording_says_so(encoder: Encoder) -> None:
    samples = speechlike(1.5)
    preset = preset_from_clip(encoder, samples, consent=True, **PRESET)
    assert preset.synthetic is False
    assert preset.seed is None
    assert preset.codes == encoder.encode(samples)
    assert (preset.name, preset.text, preset.lang) == ("mine", "What I said.", "en")


def test_without_consent_nothing_is_made(encoder: Encoder) -> None:
    for answer in (False, None, "yes"):
        with pytest.raises(ParameterError, match="speaker has agreed"):
            preset_from_clip(encoder, speechlike(1.5), consent=answer, **PRESET)


@pytest.mark.parametrize(
    ("samples", "changes", "reason"),
    [
        (speechlike(0.5), {}, "at least 1.0 s"),
        (speechlike(11.0), {}, "at most 10 s"),
        (np.zeros(RATE * 2, np.float32), {}, "a recording of speech"),
        (np.full(RATE * 2, np.nan, np.float32), {}, "a recording of speech"),
        (speechlike(2.0).reshape(2, -1), {}, "one channel"),
        (speechlike(2.0), {"sample_rate": 44_100}, "ffmpeg"),
    ],
)
def test_a_recording_that_cannot_be_used_is_refused(
    encoder: Encoder, samples: np.ndarray, changes: dict, reason: str
) -> None:
    with pytest.raises(ParameterError, match=reason):
        preset_from_clip(encoder, samples, consent=True, **(PRESET | changes))


def test_what_is_missing_is_said(path: Path, small_bundle: Path, small_graphs: Path) -> None:
    assert find_encoder(path.parent) == path
    with pytest.raises(BundleError, match=r"xcodec2_encoder\.onnx: is missing.*make a preset from"):
        find_encoder(small_bundle)
    with pytest.raises(GraphError, match="is not a codec encoder"):
        open_encoder(small_graphs / "xcodec2_decoder.onnx")
    with pytest.raises(GraphError, match="does not load"):
        open_encoder(small_bundle / "config.json")


def test_a_checkpoint_that_cannot_encode_is_refused(
    checkpoint: Path, small_checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(CheckpointError, match="has no semantic_encoder"):
        export_xcodec2_encoder.load_encoder(small_checkpoints / "xcodec2")
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    weights = load_file(checkpoint / "model.safetensors")
    weights.pop("fc_encoder.bias")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit) as status:
        export_xcodec2_encoder.main([str(tmp_path), str(tmp_path / "out")])
    assert status.value.code == 1
    assert "no tensor fc_encoder.bias" in capsys.readouterr().err
    assert not (tmp_path / "out" / ENCODER_FILE).exists()


def test_a_bundle_carries_the_encoder(small_bundle: Path, path: Path, tmp_path: Path) -> None:
    from scripts.conversion.llasa.make_bundle import BundleParts, make_bundle

    parts = BundleParts(
        model=small_bundle / "model.onnx",
        codec=small_bundle / "xcodec2_decoder.onnx",
        tokenizer=small_bundle / "tokenizer.json",
        encoder=path.parent,
    )
    folder = make_bundle(tmp_path / "bundle", parts).model.parent
    assert find_encoder(folder).read_bytes() == path.read_bytes()
    assert f"| `{ENCODER_FILE}` |" in (folder / "README.md").read_text()
    assert ENCODER_FILE in (folder / "SHA256SUMS").read_text()
