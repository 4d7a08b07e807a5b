"""transformers' XCodec2 decoder against the authors' modules (PyPI `xcodec2`), random weights.

    pip download --no-deps xcodec2==0.1.5 torchtune==0.6.1 einops==0.8.2 \
        vector-quantize-pytorch==1.17.8 einx==0.3.0 frozendict
    python -m scripts.conversion.llasa.compare_authors FOLDER_WHERE_THEY_ARE_UNPACKED

The packages' pins (torch 2.5 and others) cannot be installed beside ours, so this is no test of
the suite: it imports the decoder's files alone. Prints the largest difference for some lengths.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from safetensors.torch import save_file
from torch import nn

from scripts.conversion.llasa.export_xcodec2 import export_codec, load_decoder


def import_authors(folder: Path) -> types.ModuleType:
    """Their `xcodec2.vq.codec_decoder_vocos`, without what only training imports."""
    sys.path.append(str(folder))
    sys.modules["torchaudio"] = types.ModuleType("torchaudio")  # imported, never used
    # torchtune as a whole asks for torchao; the decoder needs one file of it.
    path = folder / "torchtune" / "modules" / "position_embeddings.py"
    spec = importlib.util.spec_from_file_location("torchtune.modules", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["torchtune"] = types.ModuleType("torchtune")
    sys.modules["torchtune.modules"] = module
    # The package itself imports its encoder; a bare namespace in its place does not.
    package = types.ModuleType("xcodec2")
    package.__path__ = [str(folder / "xcodec2")]
    sys.modules["xcodec2"] = package
    return importlib.import_module("xcodec2.vq.codec_decoder_vocos")


class Authors(nn.Module):
    """Their `XCodec2Model.decode_code`, with its names, without the encoders."""

    def __init__(self, vocos: types.ModuleType, depth: int) -> None:
        super().__init__()
        self.generator = vocos.CodecDecoderVocos(depth=depth)
        self.fc_post_a = nn.Linear(2048, 1024)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes int64 [1, 1, N] -> audio float32 [1, 320 * N]."""
        latents = self.generator.quantizer.get_output_from_indices(codes.transpose(1, 2))
        audio: torch.Tensor = self.generator(self.fc_post_a(latents), vq=False)[0]
        return audio.squeeze(1)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--depth", type=int, default=12, help="attention layers (theirs: 12)")
    arguments = parser.parse_args(argv)
    torch.manual_seed(0)
    authors = Authors(import_authors(arguments.folder), arguments.depth).eval()
    with torch.no_grad():
        for name, weight in authors.named_parameters():
            if "norm" in name:  # or the affine parts would not be seen
                weight.add_(torch.randn_like(weight), alpha=0.2)
    with tempfile.TemporaryDirectory() as work:
        checkpoint, graph = Path(work) / "checkpoint", Path(work) / "codec.onnx"
        checkpoint.mkdir()
        save_file(authors.state_dict(), checkpoint / "model.safetensors")
        ours = load_decoder(checkpoint)
        export_codec(checkpoint, graph)
        session = onnxruntime.InferenceSession(str(graph))
        for count in (1, 2, 5, 50, 333):
            codes = torch.randint(0, 65_536, (1, 1, count))
            with torch.no_grad():
                theirs, native = authors(codes).numpy(), ours(codes).numpy()
            exported = session.run(None, {"codes": codes.numpy()})[0]
            print(
                f"{count:4d} codes, peak {np.abs(theirs).max():.3f}: "
                f"transformers {np.abs(native - theirs).max():.1e}, "
                f"ONNX {np.abs(exported - theirs).max():.1e}"
            )


if __name__ == "__main__":
    main()
