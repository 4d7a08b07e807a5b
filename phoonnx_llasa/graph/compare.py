"""Hold the logits of one language model against another's, step by step over the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.errors import ParameterError

Row = NDArray[np.floating[Any]]


class RowDecoder(Protocol):
    """A language model with the KV cache of one call."""

    @property
    def row_offset(self) -> int:
        """Token id of the first entry of a row of logits."""
        ...

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; gives the logits after the last one, valid until the next call."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a candidate's logits are from a reference's, over the entries that both have.

    The arrays have one number per step.
    """

    max_abs: NDArray[np.float64]
    """Largest absolute difference of a logit."""
    mean_abs: NDArray[np.float64]
    """Mean absolute difference of the logits."""
    scale: NDArray[np.float64]
    """Largest absolute logit of the reference."""
    kl: NDArray[np.float64]
    """Kullback-Leibler divergence of the candidate from the reference, in nats."""
    greedy: NDArray[np.bool_]
    """Both have their largest logit at the same token."""
    top_p_overlap: NDArray[np.float64]
    """Tokens in both top-p sets / tokens in either."""

    @property
    def steps(self) -> int:
        """Rows of logits compared."""
        return len(self.kl)

    @property
    def relative(self) -> float:
        """Largest difference over all steps, relative to the largest logit of its step."""
        return float((self.max_abs / np.maximum(self.scale, 1e-30)).max())

    def summary(self) -> dict[str, float]:
        """The figures that a report shows."""
        return {
            "steps": self.steps,
            "max_abs": float(self.max_abs.max()),
            "mean_abs": float(self.mean_abs.mean()),
            "relative": self.relative,
            "kl_mean": float(self.kl.mean()),
            "kl_p95": float(np.quantile(self.kl, 0.95, method="higher")),
            "greedy_agreement": float(self.greedy.mean()),
            "top_p_overlap": float(self.top_p_overlap.mean()),
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """What a comparison has to keep to; None does not look."""

    max_abs: float | None = None
    mean_abs: float | None = None
    relative: float | None = None
    kl_mean: float | None = None
    kl_p95: float | None = None
    greedy_agreement: float | None = None
    """At least, 0 to 1."""
    top_p_overlap: float | None = None
    """At least, 0 to 1."""


#: What a model with coarser weights has to keep to on every path. On SmolLM2-135M, real weights
#: (docs/conversion.md), 8-bit blocks have a mean divergence of 0.003, one scale for the activations
#: of a whole prompt 0.09, 4-bit blocks 0.5. llama.cpp's tables of the same figure have about 0.001
#: for Q8_0, where nobody notices a difference.
QUANTIZED: Final = Limits(kl_mean=0.02, kl_p95=0.08, greedy_agreement=0.9, top_p_overlap=0.8)
#: Steps of each path of the gate; one second of speech.
GATE_STEPS: Final = 48


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate may stand in for its reference."""

    reasons: tuple[str, ...]
    """What it does not keep to, in words; empty if it passed."""
    figures: Mapping[str, Mapping[str, float]]
    """``Comparison.summary`` of every path, by ``<prompt>, <greedy or sampled>``."""

    @property
    def passed(self) -> bool:
        """Nothing was over a limit."""
        return not self.reasons


class Rows:
    """A decoder of whose logits only a run of tokens counts, such as those that may be sampled."""

    def __init__(self, decoder: RowDecoder, first: int, last: int) -> None:
        """Look at tokens ``first`` to ``last`` of a decoder.

        Raises:
            ParameterError: ``first`` is beyond ``last`` or the decoder has no logits of it.
        """
        if not decoder.row_offset <= first <= last:
            raise ParameterError("first", first, f"{decoder.row_offset} to {last}")
        self._decoder = decoder
        self._first, self._last = first, last

    @property
    def row_offset(self) -> int:
        """Token id of the first entry."""
        return self._first

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; gives the logits that count."""
        row = self._decoder.feed(ids)
        offset = self._decoder.row_offset
        return row[self._first - offset : self._last + 1 - offset]

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        self._decoder.truncate(length)


@dataclass(frozen=True, slots=True)
class Trial:
    """A path that a reference took, with the logits it had on it."""

    name: str
    """``<prompt>, <greedy or sampled>``."""
    is_greedy: bool
    prompt_ids: Sequence[int]
    path: Sequence[int]
    rows: Sequence[NDArray[np.float32]]
    """The logits before each token of the path."""
    row_offset: int
    """Token id of the first entry of a row."""


def record_trials(
    reference: RowDecoder,
    prompts: Mapping[str, Sequence[int]],
    *,
    steps: int = GATE_STEPS,
    seed: int = 0,
) -> list[Trial]:
    """Let a reference go its own ways, greedy and sampled, for any number of candidates to follow.

    Args:
        reference: holds the truth.
        prompts: token ids by a name for the report.
        steps: tokens of each path.
        seed: of the sampled paths.

    Raises:
        ParameterError: there is no prompt.
    """
    if not prompts:
        raise ParameterError("prompts", {}, "at least one")
    trials = []
    for name, ids in prompts.items():
        for is_greedy in (True, False):
            tape = _Tape(reference)
            path = (
                greedy_path(tape, ids, steps)
                if is_greedy
                else sampled_path(tape, ids, steps, seed=seed)
            )
            kind = "greedy" if is_greedy else "sampled"
            trials.append(
                Trial(f"{name}, {kind}", is_greedy, ids, path, tape.rows, tape.row_offset)
            )
    return trials


def judge(trials: Sequence[Trial], candidate: RowDecoder, *, limits: Limits = QUANTIZED) -> Verdict:
    """The gate: whether a candidate has its reference's logits along the reference's own paths.

    Every path has to keep to the limits, so that one that goes wrong is not outweighed by others.
    Which token is the likeliest counts on the greedy paths only: on a sampled one it can be a tie
    between many.
    """
    reasons: list[str] = []
    figures: dict[str, Mapping[str, float]] = {}
    for trial in trials:
        comparison = compare_along(_Replay(trial), candidate, trial.prompt_ids, trial.path)
        figures[trial.name] = comparison.summary()
        bounds = limits if trial.is_greedy else replace(limits, greedy_agreement=None)
        reasons += [f"{trial.name}: {text}" for text in violations(comparison, bounds)]
    return Verdict(tuple(reasons), figures)


class _Tape:
    """A decoder whose rows are kept."""

    def __init__(self, decoder: RowDecoder) -> None:
        self._decoder = decoder
        self.rows: list[NDArray[np.float32]] = []

    @property
    def row_offset(self) -> int:
        return self._decoder.row_offset

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        row = self._decoder.feed(ids).copy()
        self.rows.append(row)
        return row

    def truncate(self, length: int) -> None:
        self._decoder.truncate(length)
        self.rows.clear()


class _Replay:
    """The rows of a trial, for the tokens that it was made with."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._length = 0

    @property
    def row_offset(self) -> int:
        return self._trial.row_offset

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        self._length += len(ids)
        return self._trial.rows[self._length - len(self._trial.prompt_ids)]

    def truncate(self, length: int) -> None:
        self._length = length


def violations(comparison: Comparison, limits: Limits) -> list[str]:
    """What a comparison does not keep to, in words; a figure that is not finite never passes."""
    found = []
    for name, value in comparison.summary().items():
        limit = getattr(limits, name, None)
        if limit is None:
            continue
        at_least = name in ("greedy_agreement", "top_p_overlap")
        if not (value >= limit if at_least else value <= limit):
            bound = "at least" if at_least else "at most"
            found.append(f"{name} is {value:.3g}, allowed is {bound} {limit:g}")
    return found


def compare_along(
    reference: RowDecoder,
    candidate: RowDecoder,
    prompt_ids: Sequence[int],
    path: Sequence[int],
    *,
    top_p: float = 0.95,
    temperature: float = 1.0,
) -> Comparison:
    """Feed both the same tokens one by one and compare every row of logits.

    Args:
        reference: holds the truth; its cache is emptied first, as is the candidate's.
        candidate: what is judged.
        prompt_ids: fed in one go.
        path: the tokens after it, fed one by one whatever either would have chosen. There are
            ``len(path)`` comparisons: each before the token is fed.
        top_p: mass of the sets whose overlap is measured, at ``temperature``.
        temperature: divides the logits for divergence and sets.

    Raises:
        ParameterError: prompt or path is empty, or the decoders have no token in common.
    """
    if not prompt_ids or not path:
        raise ParameterError("path", list(path), "at least one token of prompt and one of path")
    reference.truncate(0)
    candidate.truncate(0)
    rows = reference.feed(prompt_ids), candidate.feed(prompt_ids)
    steps: list[tuple[float, float, float, float, bool, float]] = []
    for previous in (None, *path[:-1]):
        if previous is not None:
            rows = reference.feed([previous]), candidate.feed([previous])
        expected, found = common_rows(*rows, reference.row_offset, candidate.row_offset)
        steps.append(compare_rows(expected, found, top_p=top_p, temperature=temperature))
    return Comparison(*(np.array(column) for column in zip(*steps, strict=True)))


def compare_rows(
    reference: Row, candidate: Row, *, top_p: float = 0.95, temperature: float = 1.0
) -> tuple[float, float, float, float, bool, float]:
    """Compare two rows of logits of the same tokens; the figures of ``Comparison`` in its order."""
    expected, found = reference.astype(np.float64), candidate.astype(np.float64)
    difference = np.abs(found - expected)
    log_p, log_q = _log_softmax(expected / temperature), _log_softmax(found / temperature)
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        terms = np.where(p > 0, p * (log_p - log_q), 0.0)
    first, second = top_p_set(p, top_p), top_p_set(np.exp(log_q), top_p)
    return (
        float(difference.max()),
        float(difference.mean()),
        float(np.abs(expected).max()),
        max(float(terms.sum()), 0.0) if np.isfinite(found).all() else float("inf"),
        bool(expected.argmax() == found.argmax()),
        float((first & second).sum() / (first | second).sum()),
    )


def top_p_set(probabilities: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """The fewest tokens that together have at least ``top_p``, as a mask."""
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    mask = np.zeros(len(probabilities), np.bool_)
    mask[order[before < top_p]] = True
    return mask


def common_rows(
    first: NDArray[np.float32], second: NDArray[np.float32], first_offset: int, second_offset: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The parts of two rows of logits that stand for the same tokens.

    Raises:
        ParameterError: they have none in common.
    """
    start = max(first_offset, second_offset)
    stop = min(first_offset + len(first), second_offset + len(second))
    if stop <= start:
        raise ParameterError("row_offset", second_offset, "a range of tokens that both have")
    return (
        first[start - first_offset : stop - first_offset],
        second[start - second_offset : stop - second_offset],
    )


def greedy_path(
    decoder: RowDecoder,
    prompt_ids: Sequence[int],
    steps: int,
    *,
    allowed: tuple[int, int] | None = None,
) -> list[int]:
    """The ``steps`` tokens that a model itself finds most likely.

    Args:
        decoder: its cache is emptied first.
        prompt_ids: what it is given.
        steps: how many.
        allowed: first and last token id that may be chosen; None for all that it has logits for.
    """
    return _own_path(decoder, prompt_ids, steps, allowed, lambda row: int(row.argmax()))


def sampled_path(
    decoder: RowDecoder,
    prompt_ids: Sequence[int],
    steps: int,
    *,
    seed: int,
    temperature: float = 0.9,
    top_p: float = 0.95,
    allowed: tuple[int, int] | None = None,
) -> list[int]:
    """``steps`` tokens drawn from a model's own top-p sets; see ``greedy_path``."""
    rng = np.random.default_rng(seed)

    def draw(row: NDArray[np.float32]) -> int:
        p = np.exp(_log_softmax(row.astype(np.float64) / temperature))
        p *= top_p_set(p, top_p)
        return int(rng.choice(len(p), p=p / p.sum()))

    return _own_path(decoder, prompt_ids, steps, allowed, draw)


def _own_path(
    decoder: RowDecoder,
    prompt_ids: Sequence[int],
    steps: int,
    allowed: tuple[int, int] | None,
    choose: Any,
) -> list[int]:
    decoder.truncate(0)
    row = decoder.feed(prompt_ids)
    offset = decoder.row_offset
    first, last = allowed or (offset, offset + len(row) - 1)
    path: list[int] = []
    for _ in range(steps):
        if path:
            row = decoder.feed(path[-1:])
        path.append(first + choose(row[first - offset : last + 1 - offset]))
    return path


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # of what is not a number comes what is not a number
        shifted = logits - logits.max()
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
