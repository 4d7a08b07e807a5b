"""The exported codec against the decoder it was made from, in float32.

    python -m scripts.conversion.llasa.parity_codec CHECKPOINT xcodec2_decoder.onnx --json FILE

The reference is transformers' `Xcodec2` with its complex ISTFT, which gives what the authors' own
modules give (compare_authors.py: 1.3e-7). `--authors FOLDER`, with PyPI `xcodec2` unpacked in it
as compare_authors.py says, takes these themselves; the checkpoint has to be in their layout then.
The exit status is 1 when a figure is beyond its limit.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from phoonnx_llasa.codec import Codec, open_codec
from phoonnx_llasa.errors import LlasaError
from scripts.conversion.llasa.checkpoint import Checkpoint, CheckpointError
from scripts.conversion.llasa.export_xcodec2 import CodecDecoder, RealISTFTHead, load_decoder
from scripts.conversion.llasa.report import Report, Row

Sound = NDArray[np.float32]
Decode = Callable[[NDArray[np.int64]], Sound]

NUM_CODES: Final = 400  # 8 seconds, a long piece


@dataclass(frozen=True, slots=True)
class SoundLimits:
    """What two sounds may differ by."""

    max_relative: float = 2e-3
    """Largest difference of a sample over the reference's RMS: -54 dB."""
    rms_relative: float = 1e-4
    """RMS of the difference over the reference's: -80 dB, below 16-bit speech's own noise."""
    correlation: float = 0.999999
    """At least."""


def compare_sounds(
    name: str, reference: Sound, candidate: Sound, limits: SoundLimits
) -> tuple[Row, list[str]]:
    """The figures of one comparison, and what is beyond a limit, in words."""
    if reference.shape != candidate.shape:
        row = dict.fromkeys(("max", "RMS", "reference RMS", "correlation"), float("nan"))
        return {"what": name, "samples": len(candidate), **row}, [
            f"{name}: {len(candidate)} samples instead of {len(reference)}"
        ]
    difference = candidate.astype(np.float64) - reference
    level = rms(reference)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = float(np.corrcoef(reference, candidate)[0, 1])
    row = {
        "what": name,
        "samples": len(reference),
        "max": float(np.abs(difference).max()),
        "RMS": rms(difference),
        "reference RMS": level,
        "correlation": correlation,
    }
    reasons = []
    if not level > 0:
        reasons.append(f"{name}: the reference is silent, which shows nothing")
    for figure, limit in (("max", limits.max_relative), ("RMS", limits.rms_relative)):
        if not row[figure] <= limit * level:
            reasons.append(
                f"{name}: {figure} difference {row[figure]:.2e}, allowed {limit * level:.2e}"
            )
    if not correlation >= limits.correlation:
        reasons.append(f"{name}: correlation {correlation:.7f}, allowed {limits.correlation}")
    return row, reasons


def compare(
    reference: CodecDecoder,
    codec: Codec,
    *,
    num_codes: int = NUM_CODES,
    seed: int = 0,
    limits: SoundLimits | None = None,
    authors: Decode | None = None,
) -> Report:
    """Decode random codes with both, in one go; and the ISTFT by itself, real against complex."""
    limits = limits or SoundLimits()
    entries = len(reference.quantizer.quantizer.codebook)
    codes = np.random.default_rng(seed).integers(0, entries, num_codes)
    real = RealISTFTHead(reference.decoder.head)
    hidden: list[torch.Tensor] = []
    hook = reference.decoder.head.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    with torch.inference_mode():
        expected = reference(torch.from_numpy(codes)[None, None]).numpy().reshape(-1)
        hook.remove()
        complex_istft = reference.decoder.head(hidden[0]).numpy().reshape(-1)
        real_istft = real(hidden[0]).numpy().reshape(-1)
    sound = codec.decode(codes)
    pairs = [
        ("ONNX, transformers", expected, sound),
        ("ISTFT real, complex", complex_istft, real_istft),
    ]
    if authors is not None:
        pairs.append(("ONNX, the authors' modules", authors(codes), sound))
    results = [compare_sounds(*pair, limits) for pair in pairs]
    return Report(
        "parity_codec",
        f"Codec: differences of samples over {num_codes} random codes",
        [row for row, _ in results],
        [reason for _, reasons in results for reason in reasons],
        asdict(limits),
    )


def authors_decoder(folder: Path, checkpoint: Path) -> Decode:
    """The authors' own modules with the checkpoint's weights.

    Raises:
        CheckpointError: the checkpoint is not in their layout.
    """
    from scripts.conversion.llasa.authors_xcodec2 import is_authors, read_config
    from scripts.conversion.llasa.compare_authors import Authors, import_authors

    tensors = Checkpoint(checkpoint)
    if not is_authors(tensors):
        raise CheckpointError(f"{checkpoint}: is not in the authors' layout, which --authors wants")
    authors = Authors(import_authors(folder), read_config(tensors).num_hidden_layers).eval()
    wanted = {name for name, _ in authors.named_parameters()}
    found = {name: tensors[name].float() for name in tensors if name in authors.state_dict()}
    if missing := sorted(wanted - found.keys()):
        raise CheckpointError(f"{checkpoint}: no tensor {', '.join(missing[:5])}")
    authors.load_state_dict(found, strict=False)

    def decode(codes: NDArray[np.int64]) -> Sound:
        with torch.inference_mode():
            sound: Sound = authors(torch.from_numpy(codes)[None, None]).numpy().reshape(-1)
        return sound

    return decode


def rms(values: NDArray[np.floating]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 if everything is within the limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and the weights")
    parser.add_argument("codec", type=Path, help="xcodec2_decoder.onnx made from it")
    parser.add_argument("--codes", type=int, default=NUM_CODES)
    parser.add_argument("--authors", type=Path, help="folder with PyPI xcodec2 unpacked in it")
    parser.add_argument("--json", type=Path, help="where to write the report")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        reference = load_decoder(arguments.checkpoint)
        authors = (
            authors_decoder(arguments.authors, arguments.checkpoint) if arguments.authors else None
        )
        codec = open_codec(arguments.codec, hop_length=reference.decoder.head.hop_length)
        report = compare(reference, codec, num_codes=arguments.codes, authors=authors)
    except (LlasaError, CheckpointError, OSError) as error:
        parser.exit(2, f"{error}\n")
    if arguments.json:
        report.write(arguments.json)
    print(report.text())
    return 0 if report.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
