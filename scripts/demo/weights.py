"""Checkpoints of the training -> the one .npz that is kept and that make_bundle reads.

    python -m scripts.demo.weights lm.pt codec.pt voice_fp16.npz

Only what the voice needs goes in, in half precision: `lm.*` under transformers' names,
`codec.q.project_out.*` and `codec.dec.*`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

SHIPPED = {
    "model": {"model.": "lm.model."},
    "codec": {"quantizer.project_out.": "codec.q.project_out.", "decoder.": "codec.dec."},
}


def collect(checkpoints: dict[str, Path]) -> dict[str, np.ndarray]:
    """The shipped tensors of both checkpoints, in half precision."""
    weights = {}
    for part, path in checkpoints.items():
        for name, tensor in torch.load(path, weights_only=False)[part].items():
            for old, new in SHIPPED[part].items():
                if name.startswith(old):
                    weights[new + name.removeprefix(old)] = tensor.half().numpy()
    return weights


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lm", type=Path)
    parser.add_argument("codec", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    np.savez(arguments.out, **collect({"model": arguments.lm, "codec": arguments.codec}))


if __name__ == "__main__":
    main()
