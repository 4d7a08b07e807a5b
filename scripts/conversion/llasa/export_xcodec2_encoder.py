"""XCodec2 checkpoint -> xcodec2_encoder.onnx (recording -> codes), for presets from recordings.

    python -m scripts.conversion.llasa.export_xcodec2_encoder CHECKPOINT_FOLDER encoder

One graph holds the whole way in: the filterbank front end, the semantic model (w2v-BERT), the
acoustic encoder and the quantizer. Nothing of it is needed to speak. The checkpoint has to be in
transformers' layout (HKUSTAudio/xcodec2-hf); the authors' own lacks the semantic model.

Input `samples` float32 [1, T] at 16 kHz, T a multiple of 320; output `codes` int64 [1, 1, T / 320].
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from torch import nn
from transformers import Xcodec2Model
from transformers.audio_utils import mel_filter_bank, window_function
from transformers.models.xcodec2 import modeling_xcodec2 as xcodec2

from phoonnx_llasa.encoder import ENCODER_FILE
from scripts.conversion.llasa.checkpoint import Checkpoint, CheckpointError
from scripts.conversion.llasa.files import whole_files
from scripts.conversion.llasa.onnx_store import DATA_SUFFIX, INLINE_LIMIT, fold_constants

logger = logging.getLogger(__name__)

OPSET: Final = 17
PREFIXES: Final = ("semantic_encoder.", "semantic_adapter.", "acoustic_encoder.", "fc_encoder.")
#: The filterbank that w2v-BERT was trained on (transformers' Xcodec2FeatureExtractor).
SAMPLE_RATE, FRAME, SHIFT, N_FFT, MELS = 16_000, 400, 160, 512, 80
PREEMPHASIS, LOWEST, FLOOR = 0.97, 20, 1.192092955078125e-07


class Filterbank(nn.Module):
    """Kaldi's log mel filterbank, normalized over time, two frames side by side.

    Removing each frame's mean, pre-emphasis, window and Fourier transform are linear, so they are
    one matrix here and the frames are a convolution.
    """

    def __init__(self) -> None:
        super().__init__()
        mean = np.eye(FRAME) - 1.0 / FRAME
        emphasis = np.eye(FRAME) - PREEMPHASIS * np.eye(FRAME, k=-1)
        emphasis[0, 0] -= PREEMPHASIS  # the first sample counts as its own predecessor
        window = window_function(FRAME, "povey", periodic=False)
        bins, places = np.arange(N_FFT // 2 + 1), np.arange(FRAME)
        angle = 2 * np.pi / N_FFT * (np.outer(bins, places) % N_FFT)
        linear = (window[:, None] * emphasis) @ mean * 2.0**15
        waves = np.concatenate([np.cos(angle) @ linear, -np.sin(angle) @ linear])
        mel = mel_filter_bank(
            num_frequency_bins=N_FFT // 2 + 1,
            num_mel_filters=MELS,
            min_frequency=LOWEST,
            max_frequency=SAMPLE_RATE // 2,
            sampling_rate=SAMPLE_RATE,
            norm=None,
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
        self.waves = nn.Buffer(torch.from_numpy(waves.astype(np.float32)).unsqueeze(1))
        self.mel = nn.Buffer(torch.from_numpy(mel.astype(np.float32)))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples float32 [1, T] -> features float32 [1, T / 320, 160]."""
        padded = nn.functional.pad(samples.unsqueeze(1), (SHIFT, SHIFT))
        real, imaginary = nn.functional.conv1d(padded, self.waves, stride=SHIFT).chunk(2, dim=1)
        power = (real.square() + imaginary.square()).transpose(1, 2)
        features = (power @ self.mel).clamp(min=FLOOR).log()
        deviation = features - features.mean(1, keepdim=True)
        count = features.shape[1] - 1
        variance = deviation.square().sum(1, keepdim=True) / count
        return (deviation / torch.sqrt(variance + 1e-7)).reshape(1, -1, 2 * MELS)


class Resample(nn.Module):
    """`Xcodec2UpSample1d` or `Xcodec2DownSample1d` for a number of channels that is known."""

    def __init__(self, original: nn.Module, channels: int) -> None:
        super().__init__()
        self.original = original
        self.filter = nn.Buffer(original.filter.expand(channels, -1, -1).clone())
        self.channels = channels

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, C, T] -> [B, C, 2 T] or [B, C, T / 2]."""
        source = self.original
        if isinstance(source, xcodec2.Xcodec2UpSample1d):
            hidden = nn.functional.pad(hidden, (source.pad, source.pad), mode="replicate")
            hidden = source.ratio * nn.functional.conv_transpose1d(
                hidden, self.filter, stride=source.stride, groups=self.channels
            )
            return hidden[..., source.pad_left : -source.pad_right]
        hidden = nn.functional.pad(hidden, (source.pad_left, source.pad_right), mode="replicate")
        return nn.functional.conv1d(hidden, self.filter, stride=source.stride, groups=self.channels)


class CodecEncoder(nn.Module):
    """Everything between samples and codes as one module, ready for tracing."""

    def __init__(self, model: Xcodec2Model) -> None:
        super().__init__()
        self.filterbank = Filterbank()
        self.model = model

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples float32 [1, T] -> codes int64 [1, 1, T / hop]."""
        output = self.model.encode(samples.unsqueeze(1), self.filterbank(samples))
        codes: torch.Tensor = output.audio_codes.to(torch.int64)
        return codes


def load_encoder(folder: Path) -> CodecEncoder:
    """Build the encoding half of a checkpoint folder, float32, in eval mode.

    Raises:
        CheckpointError: the folder is no XCodec2 checkpoint of transformers, or it lacks a part.
    """
    names = set(Checkpoint(folder))
    if lacking := [each for each in PREFIXES if not any(n.startswith(each) for n in names)]:
        raise CheckpointError(
            f"{folder}: has no {', '.join(lacking)} and cannot encode; the checkpoint with the "
            "encoder in transformers' layout is HKUSTAudio/xcodec2-hf"
        )
    model, loading = Xcodec2Model.from_pretrained(
        folder,
        dtype=torch.float32,
        local_files_only=True,
        output_loading_info=True,
        attn_implementation="eager",
    )
    needed = (*PREFIXES, "quantizer.project_in.")
    if missing := sorted(name for name in loading["missing_keys"] if name.startswith(needed)):
        raise CheckpointError(f"{folder}: no tensor {', '.join(missing[:5])}")
    return CodecEncoder(model.eval())


def export_encoder(folder: Path, output: Path) -> None:
    """Write the graph of the encoder in `folder` to `output`, whole or not at all.

    Weights lie in `<output>_data` when they do not fit into the graph.
    """
    encoder = load_encoder(folder)
    for module in list(encoder.modules()):
        if isinstance(module, xcodec2.Xcodec2AntiAliasedActivation1d):
            channels = module.act.in_features
            module.upsample = Resample(module.upsample, channels)
            module.downsample = Resample(module.downsample, channels)
    encoder.model.acoustic_decoder = nn.Identity()
    samples = torch.randn(1, 24 * encoder.model.hop_length, generator=torch.Generator())
    data = output.with_name(output.name + DATA_SUFFIX)
    with (
        whole_files(data, output) as (data_part, part),
        tempfile.TemporaryDirectory() as work,
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the legacy exporter's notices about itself
        traced = Path(work) / "encoder.onnx"
        torch.onnx.export(
            encoder,
            (samples,),
            str(traced),
            input_names=["samples"],
            output_names=["codes"],
            dynamic_axes={"samples": {1: "num_samples"}, "codes": {2: "num_codes"}},
            opset_version=OPSET,
            dynamo=False,
        )
        model = onnx.load(traced)
        fold_constants(model)
        for axis in (0, 1):
            model.graph.output[0].type.tensor_type.shape.dim[axis].dim_value = 1
        size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        external = size > INLINE_LIMIT
        onnx.save_model(model, part, save_as_external_data=external, location=data_part.name)
    if not external:
        data.unlink(missing_ok=True)
    logger.info("wrote %s (%.1f MB)", output, size / 1e6)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and the weights")
    parser.add_argument("folder", type=Path, help=f"gets {ENCODER_FILE}")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        export_encoder(arguments.checkpoint, arguments.folder / ENCODER_FILE)
    except (CheckpointError, OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
