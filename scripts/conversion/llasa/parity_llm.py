"""The exported language model against transformers in float32, on the same checkpoint.

    python -m scripts.conversion.llasa.parity_llm CHECKPOINT model.onnx --json parity_llm.json

Both are fed the same tokens: a prompt, then the tokens that transformers finds likeliest, one by
one. Compared are all logits of every step. The exit status is 1 when a figure is beyond its limit.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, LlamaForCausalLM

from phoonnx_llasa.bundle import LLASA_PROMPT
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.graph.compare import (
    GATE_STEPS,
    Comparison,
    Limits,
    RowDecoder,
    compare_along,
    greedy_path,
    violations,
)
from phoonnx_llasa.language_model import open_published
from scripts.conversion.llasa.checkpoint import CheckpointError
from scripts.conversion.llasa.prompts import read_prompts
from scripts.conversion.llasa.report import Report, Row

logger = logging.getLogger(__name__)

#: float32 sums taken in another order come to some 1e-5 at true size; a wrong epsilon, angle or
#: scale to 1e-2 and more. `relative` is to the step's largest logit.
LIMITS: Final = Limits(max_abs=1e-3, relative=1e-4, greedy_agreement=1.0)


class TransformersDecoder:
    """A LLaMA of transformers with the KV cache of one call, as `compare_along` wants it."""

    row_offset = 0

    def __init__(self, llama: LlamaForCausalLM) -> None:
        self._llama = llama
        self._cache = DynamicCache()

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; gives the logits after the last one, float32 [V]."""
        with torch.inference_mode():
            output = self._llama(
                input_ids=torch.tensor([list(ids)]),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self._cache = output.cache
        row: NDArray[np.float32] = output.logits[0, -1].numpy()
        return row

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        if length:
            self._cache.crop(length)
        else:
            self._cache = DynamicCache()


def load_reference(folder: Path) -> TransformersDecoder:
    """The checkpoint in float32, whatever type it is stored in.

    Raises:
        CheckpointError: transformers cannot load it, or does not find all weights in it.
    """
    try:
        llama, loading = LlamaForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error
    if missing := loading["missing_keys"]:
        raise CheckpointError(f"{folder}: no tensor {', '.join(sorted(missing)[:5])}")
    return TransformersDecoder(llama.eval())


def compare(
    reference: RowDecoder,
    candidate: RowDecoder,
    prompts: Mapping[str, Sequence[int]],
    *,
    steps: int = GATE_STEPS,
    limits: Limits = LIMITS,
) -> Report:
    """Compare along the reference's own greedy path behind each prompt."""
    rows, reasons = [], []
    for name, ids in prompts.items():
        path = greedy_path(reference, ids, steps)
        comparison = compare_along(reference, candidate, ids, path)
        rows.append(_row(name, len(ids), comparison))
        reasons += [f"{name}: {text}" for text in violations(comparison, limits)]
        logger.info("%s: %d steps, max abs %.1e", name, steps, comparison.max_abs.max())
    return Report(
        "parity_llm",
        "Language model: ONNX against transformers float32, differences of logits",
        rows,
        reasons,
        asdict(limits),
    )


def _row(name: str, tokens: int, comparison: Comparison) -> Row:
    decode = slice(1, None) if comparison.steps > 1 else slice(None)
    return {
        "prompt": name,
        "tokens": tokens,
        "prefill max": float(comparison.max_abs[0]),
        "prefill mean": float(comparison.mean_abs[0]),
        "decode max": float(comparison.max_abs[decode].max()),
        "decode mean": float(comparison.mean_abs[decode].mean()),
        "largest logit": float(comparison.scale.max()),
        "greedy": f"{int(comparison.greedy.sum())}/{comparison.steps}",
    }


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 if everything is within the limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and the weights")
    parser.add_argument("model", type=Path, help="model.onnx made from it")
    parser.add_argument("--tokenizer", type=Path, help="default: the checkpoint's tokenizer.json")
    parser.add_argument("--prompt", default=LLASA_PROMPT, help="template with {text} in it")
    parser.add_argument("--steps", type=int, default=GATE_STEPS, help="greedy steps per prompt")
    parser.add_argument("--max-abs", type=float, default=LIMITS.max_abs)
    parser.add_argument("--relative", type=float, default=LIMITS.relative)
    parser.add_argument("--json", type=Path, help="where to write the report")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        prompts = read_prompts(
            arguments.tokenizer or arguments.checkpoint / "tokenizer.json",
            template=arguments.prompt,
        )
        report = compare(
            load_reference(arguments.checkpoint),
            open_published(arguments.model).decoder(),
            prompts.ids,
            steps=arguments.steps,
            limits=Limits(arguments.max_abs, None, arguments.relative, greedy_agreement=1.0),
        )
    except (LlasaError, CheckpointError, OSError) as error:
        parser.exit(2, f"{error}\n")
    if arguments.json:
        report.write(arguments.json)
    print(report.text())
    return 0 if report.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
