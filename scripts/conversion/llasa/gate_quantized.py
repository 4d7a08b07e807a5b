"""Quantized variants of a language model, built and put through the gate against float32.

    python -m scripts.conversion.llasa.gate_quantized model.onnx --tokenizer tokenizer.json \
        --work variants --json gate_quantized.json

Without `--form` every form is built and reported, and only a fault in the packing is a failure:
which forms a model bears is what one wants to know. A form that is named has to pass, and so has
`--candidate`, a graph that was made elsewhere. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phoonnx_llasa.bundle import LLASA_PROMPT
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.graph.compare import GATE_STEPS, QUANTIZED, Limits, Verdict, judge, record_trials
from phoonnx_llasa.graph.external_data import external_extents
from phoonnx_llasa.graph.quantize import FORMS, Packing, check_packing, quantize_graph
from phoonnx_llasa.language_model import open_published
from scripts.conversion.llasa.prompts import Prompts, read_prompts
from scripts.conversion.llasa.report import Report

logger = logging.getLogger(__name__)


def gate(
    model: Path,
    candidates: dict[str, tuple[Path, Packing | None]],
    prompts: Prompts,
    *,
    required: Sequence[str] = (),
    steps: int = GATE_STEPS,
    seed: int = 0,
    limits: Limits = QUANTIZED,
) -> Report:
    """Judge graphs against `model`.

    Args:
        model: the float32 graph.
        candidates: graphs by name, with what `check_packing` found where they were built here.
        prompts: what to feed. Only the logits that may be sampled count.
        required: the names that have to pass.
        steps: tokens of each path.
        seed: of the sampled paths.
        limits: what to keep to.
    """
    reference = prompts.sampled(open_published(model).decoder())
    trials = record_trials(reference, prompts.ids, steps=steps, seed=seed)
    logger.info("float32 went %d paths of %d tokens", len(trials), steps)
    rows: list[dict[str, Any]] = []
    reasons = []
    for name, (path, packing) in candidates.items():
        decoder = prompts.sampled(open_published(path).decoder())
        verdict = judge(trials, decoder, limits=limits)
        packed = packing is None or packing.right
        if packing is not None and not packed:
            reasons.append(
                f"{name}: the packing is wrong: {packing.worst} is off by "
                f"{packing.worst_steps:.3g} steps"
            )
        if name in required:
            reasons += [f"{name}: {reason}" for reason in verdict.reasons]
        rows.append(_row(name, path, packing, verdict, passed=packed and verdict.passed))
        logger.info("%s: %s", name, "passed" if rows[-1]["passed"] else "rejected")
    return Report(
        "gate_quantized",
        f"Quantized language models against float32 on its own greedy and sampled paths of {steps}",
        rows,
        reasons,
        asdict(limits),
    )


def _row(
    name: str, path: Path, packing: Packing | None, verdict: Verdict, *, passed: bool
) -> dict[str, Any]:
    """The worst figure of all paths in each column."""
    figures = list(verdict.figures.values())
    greedy = [f for key, f in verdict.figures.items() if key.endswith("greedy")]
    size = path.stat().st_size + sum(
        path.with_name(sidecar).stat().st_size for sidecar in external_extents(path)
    )
    return {
        "form": name,
        "MB": round(size / 1e6, 1),
        "weights' error": "" if packing is None else packing.relative_error,
        "mean abs": max(f["mean_abs"] for f in figures),
        "max abs": max(f["max_abs"] for f in figures),
        "KL mean": max(f["kl_mean"] for f in figures),
        "KL p95": max(f["kl_p95"] for f in figures),
        "top-p overlap": min(f["top_p_overlap"] for f in figures),
        "greedy": min(f["greedy_agreement"] for f in greedy),
        "passed": passed,
    }


def build(
    model: Path, work: Path, forms: Sequence[str], *, head: bool = False
) -> dict[str, tuple[Path, Packing | None]]:
    """Build variants as `work`/<form>/model.onnx and check how they are packed."""
    built: dict[str, tuple[Path, Packing | None]] = {}
    for name in forms:
        path = work / name / "model.onnx"
        count = quantize_graph(model, path, FORMS[name], head=head)
        logger.info("%s: %d matrices", name, count)
        built[name] = path, check_packing(model, path)
    return built


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 if everything is within the limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path, help="model.onnx in float32")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--prompt", default=LLASA_PROMPT, help="template with {text} in it")
    parser.add_argument("--form", action="append", choices=sorted(FORMS), help="has to pass")
    parser.add_argument("--candidate", action="append", type=Path, default=[], help="has to pass")
    parser.add_argument("--head", action="store_true", help="quantize the head as well")
    parser.add_argument("--work", type=Path, help="keep the variants in this folder")
    parser.add_argument("--steps", type=int, default=GATE_STEPS)
    parser.add_argument("--seed", type=int, default=0, help="of the sampled paths")
    parser.add_argument("--json", type=Path, help="where to write the report")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    given: dict[str, tuple[Path, Packing | None]] = {
        f"{path.resolve().parent.name}/{path.name}": (path, None) for path in arguments.candidate
    }
    forms = arguments.form or ([] if given else sorted(FORMS))
    try:
        prompts = read_prompts(arguments.tokenizer, template=arguments.prompt)
        with tempfile.TemporaryDirectory() as temporary:
            work = arguments.work or Path(temporary)
            report = gate(
                arguments.model,
                given | build(arguments.model, work, forms, head=arguments.head),
                prompts,
                required=[*given, *(arguments.form or ())],
                steps=arguments.steps,
                seed=arguments.seed,
            )
    except (LlasaError, OSError) as error:
        parser.exit(2, f"{error}\n")
    if arguments.json:
        report.write(arguments.json)
    print(report.text())
    return 0 if report.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
