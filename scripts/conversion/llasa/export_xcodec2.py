"""XCodec2 checkpoint -> xcodec2_decoder.onnx (codes -> waveform).

    python -m scripts.conversion.llasa.export_xcodec2 CHECKPOINT_FOLDER xcodec2_decoder.onnx

The graph is transformers' own `Xcodec2Quantizer` and `Xcodec2Decoder`, traced, with one part
replaced: ONNX has no complex numbers, so the ISTFT of the head is written as two constant
matrices (cosine and sine, window included) and an overlap-add.

Input `codes` int64 [1, 1, N], output `audio` float32 [1, hop * N] at the checkpoint's sample rate.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from transformers import Xcodec2Config
from transformers.models.xcodec2.modeling_xcodec2 import (
    Xcodec2Decoder,
    Xcodec2ISTFTHead,
    Xcodec2Quantizer,
)

from scripts.conversion.llasa.authors_xcodec2 import is_authors, read_config, to_transformers
from scripts.conversion.llasa.checkpoint import Checkpoint, CheckpointError
from scripts.conversion.llasa.files import whole_files
from scripts.conversion.llasa.onnx_store import fold_constants

logger = logging.getLogger(__name__)

OPSET = 17  # the first with LayerNormalization; every onnxruntime the package allows reads it


def inverse_real_dft(n_fft: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices C and S, float64 [n_fft // 2 + 1, n_fft], with irfft(X) = Re X @ C + Im X @ S.

    As `torch.fft.irfft(norm="backward")`: all bins but the first and the last stand for two, and
    the imaginary parts of those two are without effect.
    """
    bins, samples = np.arange(n_fft // 2 + 1), np.arange(n_fft)
    angle = 2 * np.pi / n_fft * (np.outer(bins, samples) % n_fft)
    weight = np.full((bins.size, 1), 2.0 / n_fft)
    weight[0] = weight[-1] = 1.0 / n_fft
    cosine, sine = weight * np.cos(angle), -weight * np.sin(angle)
    sine[0] = sine[-1] = 0.0
    return cosine, sine


def column_order(n_fft: int, overlap: int) -> np.ndarray:
    """The samples of a frame in the order that the overlap-add takes them, int64 [n_fft].

    Sample j * hop + h is column h * overlap + j, so that the overlap-add is one grouped
    convolution: group h takes its `overlap` samples and spreads them over the frames by an
    identity kernel. (The textbook form, one n_fft x n_fft identity, gives the same sums for
    1,638,400 weights instead of 5,120.)
    """
    return np.arange(n_fft).reshape(overlap, n_fft // overlap).T.reshape(-1)


class RealISTFTHead(nn.Module):
    """`Xcodec2ISTFTHead` without complex numbers and without a frame count in the graph."""

    def __init__(self, head: Xcodec2ISTFTHead) -> None:
        super().__init__()
        self.linear = head.linear
        self.n_fft: int = head.n_fft
        self.hop_length: int = head.hop_length
        self.padding: int = head.padding
        if self.n_fft % self.hop_length:
            raise CheckpointError(f"n_fft {self.n_fft} is no multiple of hop {self.hop_length}")
        overlap = self.n_fft // self.hop_length
        window = torch.hann_window(self.n_fft, dtype=torch.float64).numpy()
        cosine, sine = (matrix * window for matrix in inverse_real_dft(self.n_fft))
        order = column_order(self.n_fft, overlap)
        self.cosine = nn.Buffer(_float32(cosine[:, order]))
        self.sine = nn.Buffer(_float32(sine[:, order]))
        self.window_square = nn.Buffer(_float32(np.square(window)[order]))
        self.identity = nn.Buffer(torch.eye(overlap).repeat(self.hop_length, 1).unsqueeze(1))

    def overlap_add(self, frames: torch.Tensor) -> torch.Tensor:
        """Frames float32 [B, N, n_fft] in column order -> float32 [B, hop * N], edges cut."""
        summed = nn.functional.conv_transpose1d(
            frames.transpose(1, 2), self.identity, groups=self.hop_length
        )
        return summed.transpose(1, 2).flatten(1)[:, self.padding : -self.padding]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Hidden states float32 [B, N, hidden] -> audio float32 [B, 1, hop * N]."""
        magnitude, phase = self.linear(hidden_states).chunk(2, dim=-1)
        magnitude = magnitude.exp().clamp(max=1e2)  # the authors' bound
        real, imaginary = magnitude * phase.cos(), magnitude * phase.sin()
        frames = real @ self.cosine + imaginary @ self.sine
        envelope = self.overlap_add(self.window_square.expand(1, frames.shape[1], -1))
        audio = self.overlap_add(frames) / envelope.clamp(min=1e-11)
        return audio.unsqueeze(1)


class CodecDecoder(nn.Module):
    """The quantizer's way back and the decoder as one module, ready for tracing."""

    def __init__(self, quantizer: Xcodec2Quantizer, decoder: Xcodec2Decoder) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.decoder = decoder

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes int64 [1, 1, N] -> audio float32 [1, hop * N]."""
        latents = self.quantizer.from_codes(codes.transpose(1, 2))
        audio: torch.Tensor = self.decoder(latents)
        return audio.squeeze(1)


def load_decoder(folder: Path) -> CodecDecoder:
    """Build the decoding half of a checkpoint folder, float32, in eval mode.

    The folder holds config.json of an `Xcodec2Config` and the weights of an `Xcodec2Model`; only
    `quantizer.project_out.*` and `acoustic_decoder.*` are read, so a folder with nothing else in
    it will do. The authors' own checkpoint (HKUSTAudio/xcodec2) is understood as well. Raises
    CheckpointError naming the tensors that are missing or misshapen.
    """
    checkpoint: Mapping[str, torch.Tensor] = Checkpoint(folder)
    if is_authors(checkpoint):
        config, checkpoint = read_config(checkpoint), to_transformers(checkpoint)
    else:
        config = Xcodec2Config.from_pretrained(folder)
    config._attn_implementation = "eager"  # plain matmuls, the same numbers in torch and in ONNX
    quantizer, decoder = Xcodec2Quantizer(config), Xcodec2Decoder(config)
    _load_part(quantizer.project_out, checkpoint, "quantizer.project_out.", folder)
    _load_part(decoder, checkpoint, "acoustic_decoder.", folder)
    return CodecDecoder(quantizer, decoder).float().eval()


def _load_part(
    module: nn.Module, checkpoint: Mapping[str, torch.Tensor], prefix: str, folder: Path
) -> None:
    wanted = module.state_dict()
    missing = [prefix + name for name in wanted if prefix + name not in checkpoint]
    if missing:
        raise CheckpointError(f"{folder}: no tensor {', '.join(missing[:5])}")
    tensors = {name: checkpoint[prefix + name] for name in wanted}
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(
                f"{folder}: {prefix + name} is {list(tensor.shape)}, "
                f"config.json asks for {list(wanted[name].shape)}"
            )
    module.load_state_dict(tensors)


def export_codec(folder: Path, output: Path) -> None:
    """Write the ONNX decoder of the checkpoint in `folder` to `output`, whole or not at all."""
    codec = load_decoder(folder)
    codec.decoder.add_module("head", RealISTFTHead(codec.decoder.head))
    # 12 codes: more than every kernel and the overlap reach, so no edge case is traced.
    codes = torch.arange(12).reshape(1, 1, 12)
    with whole_files(output) as (part,), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter's notices about itself
        torch.onnx.export(
            codec,
            (codes,),
            str(part),
            input_names=["codes"],
            output_names=["audio"],
            dynamic_axes={"codes": {2: "num_codes"}, "audio": {1: "num_samples"}},
            opset_version=OPSET,
            dynamo=False,
        )
        model = onnx.load(part)
        fold_constants(model)
        # The exporter names the batch of the output after a node; the contract has one sequence.
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
        onnx.checker.check_model(model)
        onnx.save(model, part)
    logger.info("wrote %s (%.1f MB)", output, output.stat().st_size / 1e6)


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and the weights")
    parser.add_argument("output", type=Path, help="the .onnx file to write")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    export_codec(arguments.checkpoint, arguments.output)


if __name__ == "__main__":
    main()
