"""Time per token and prefill of several engines, in rounds that alternate between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines import TITLES, Engine, Say, Subject, in_turn
from benchmarks.machine import Bandwidth

#: Largest difference between the engines' logits, relative to the largest logit: beyond it they
#: do not do the same work. float32 sums taken in another order give 2e-5.
_SAME: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how often."""

    pasts: tuple[int, ...] = (100, 300, 900, 1500)
    """Tokens in the cache while single steps are timed."""
    prefills: tuple[int, ...] = (100, 300, 600)
    rounds: int = 6
    steps: int = 5
    """Timed steps per round, past length and engine; one more before them is not."""
    prefill_rounds: int = 3


@dataclass(slots=True)
class Speed:
    """Seconds, one list per round."""

    whole: dict[str, dict[int, list[list[float]]]] = field(default_factory=dict)
    """Engine -> past length -> rounds -> whole steps."""
    graph: dict[str, dict[int, list[list[float]]]] = field(default_factory=dict)
    prefill: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """Engine -> tokens -> rounds."""
    bandwidth: list[float] = field(default_factory=list)
    """Bytes per second, one per round."""


def measure_speed(
    engines: Sequence[Engine],
    subject: Subject,
    plan: Plan,
    bandwidth: Bandwidth,
    say: Say,
) -> Speed:
    """Alternate between the engines, in another order each round.

    Raises:
        RuntimeError: engines over the same weights give different logits.
    """
    speed = Speed()
    ids = subject.tokens(max((*plan.pasts, *plan.prefills)) + 1)
    for engine in engines:
        engine.prefill(ids[:8])  # the weights come into memory
        speed.whole[engine.name] = {past: [] for past in plan.pasts}
        speed.graph[engine.name] = {past: [] for past in plan.pasts}
        speed.prefill[engine.name] = {count: [] for count in plan.prefills}
    for turn in range(plan.prefill_rounds):
        say(f"prefill, round {turn + 1} of {plan.prefill_rounds}")
        speed.bandwidth.append(bandwidth.measure())
        for count in plan.prefills:
            for engine in in_turn(engines, turn):
                speed.prefill[engine.name][count].append(engine.prefill(ids[:count]))
    say(f"filling caches of {max(plan.pasts) + 1} tokens")
    _require_same(engines, {e.name: e.fill(ids[: max(plan.pasts) + 1]) for e in engines})
    for turn in range(plan.rounds):
        say(f"single steps, round {turn + 1} of {plan.rounds}")
        speed.bandwidth.append(bandwidth.measure())
        for past in plan.pasts:
            for engine in in_turn(engines, turn):
                steps = engine.steps(past, plan.steps + 1)[1:]
                speed.whole[engine.name][past].append([step.whole for step in steps])
                speed.graph[engine.name][past].append([step.graph for step in steps])
    return speed


def _require_same(engines: Sequence[Engine], logits: dict[str, NDArray[np.float32]]) -> None:
    names = [engine.name for engine in engines if not engine.name.startswith("llama_")]
    for name in names[1:]:
        expected, found = logits[names[0]], logits[name]
        difference = float(np.abs(found - expected).max() / np.abs(expected).max())
        if not difference < _SAME:
            raise RuntimeError(
                f"{TITLES[name]} and {TITLES[names[0]]} give logits that are {difference:.2g} of "
                "the largest apart: they do not do the same work"
            )
