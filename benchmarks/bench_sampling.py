"""Time one sampling step over Llasa's 65,536 codes and the end token.

    python -m benchmarks.bench_sampling [--rounds 60]

Ours against transformers' warpers (torch, softmax and multinomial included) and the sampler of
phoonnx's own llasa engine, which sorts the whole vocabulary of 193,800 (its masking included).
Rounds alternate between the three, so that a machine that changes its speed changes all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from phoonnx.engines.llasa import LlasaAdapter, _sample
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from phoonnx_llasa.sampling import Sampler, SamplingParams, SpeechLayout

# Llasa-1B: 193,800 ids, the end token before the speech tokens
VOCABULARY = 193_800
LAYOUT = SpeechLayout(first_code=128_264, num_codes=65_536, end=128_261)

#: Standard deviation of the logits: "peaked" keeps a few hundred codes at top-p 0.95, "flat" most.
PEAKED, FLAT = 4.0, 0.3

CASES = {
    "top-k 50": (SamplingParams(top_k=50, top_p=1.0), FLAT),
    "top-p 0.95, peaked": (SamplingParams(), PEAKED),
    "top-p 0.95, flat": (SamplingParams(), FLAT),
    "min-p 0.1": (SamplingParams(top_p=1.0, min_p=0.1), PEAKED),
    "all off": (SamplingParams(top_p=1.0), FLAT),
}


def ours(params: SamplingParams) -> Callable[[NDArray[np.float32]], int]:
    """The step of this package."""
    sampler = Sampler(params, LAYOUT, 0)
    return lambda logits: sampler.sample(logits, allow_end=True)


def of_transformers(params: SamplingParams) -> Callable[[NDArray[np.float32]], int]:
    """The step of transformers' generate, over the same 65,537 entries."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p is not None:
        warpers.append(MinPLogitsWarper(params.min_p))
    generator = torch.Generator().manual_seed(0)
    stop = LAYOUT.first_code + LAYOUT.num_codes

    def step(logits: NDArray[np.float32]) -> int:
        allowed = np.append(logits[LAYOUT.first_code : stop], logits[LAYOUT.end])
        scores = warpers(torch.LongTensor(1, 0), torch.from_numpy(allowed)[None])
        return int(torch.multinomial(torch.softmax(scores, -1), 1, generator=generator))

    return step


def of_host(params: SamplingParams) -> Callable[[NDArray[np.float32]], int] | None:
    """The step of phoonnx's engine; it has neither top-k nor min-p."""
    if params.top_k or params.min_p is not None:
        return None
    adapter = LlasaAdapter()
    adapter.speech_token_base, adapter.speech_end_id = LAYOUT.first_code, LAYOUT.end
    random = np.random.default_rng(0)
    return lambda logits: _sample(
        adapter._mask_logits(logits, allow_end=True), params.temperature, params.top_p, random
    )


def measure(rounds: int) -> dict[str, dict[str, float | int | None]]:
    """Case -> entries kept, and the median milliseconds of each sampler (None: it has no such)."""
    random = np.random.default_rng(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the others; its threads wait for each other on a busy machine
    found: dict[str, dict[str, float | int | None]] = {}
    for name, (params, spread) in CASES.items():
        rows = random.normal(0, spread, (8, VOCABULARY)).astype(np.float32)
        steps = {
            "ours": ours(params),
            "transformers": of_transformers(params),
            "phoonnx": of_host(params),
        }
        times: dict[str, list[float]] = {sampler: [] for sampler in steps}
        for number in range(rounds + 3):
            for sampler, step in steps.items():
                if step is not None:
                    started = time.perf_counter()
                    step(rows[number % len(rows)])
                    times[sampler].append(1e3 * (time.perf_counter() - started))
        kept = len(Sampler(params, LAYOUT, 0).candidates(rows[0], allow_end=True)[0])
        found[name] = {"kept": kept} | {
            sampler: statistics.median(taken[3:]) if taken else None
            for sampler, taken in times.items()
        }
    torch.set_num_threads(threads)
    return found


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="steps per case and sampler")
    rounds = parser.parse_args().rounds
    print(
        f"numpy {np.__version__}, transformers {transformers.__version__}, torch "
        f"{torch.__version__}, one thread each; medians of {rounds} steps, ms"
    )
    print(f"{'':20}{'kept':>8}{'ours':>9}{'transformers':>14}{'phoonnx':>10}")
    for name, row in measure(rounds).items():
        medians = ["-" if (ms := row[s]) is None else f"{ms:.2f}" for s in list(row)[1:]]
        print(f"{name:20}{row['kept']:8d}{medians[0]:>9}{medians[1]:>14}{medians[2]:>10}")


if __name__ == "__main__":
    main()
