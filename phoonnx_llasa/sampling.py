"""One row of logits in, the next speech code out: Hugging Face's sampling without a full sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.errors import GraphError, ParameterError

END: Final = -1
"""What `Sampler.sample` returns when the end of speech was drawn."""

_SORTED_AT_ONCE: Final = 64
"""A boundary segment this short is sorted; longer ones are halved by partition."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How codes are drawn; names and meaning as in transformers' `generate`.

    Raises:
        ParameterError: a value is out of range.
    """

    temperature: float = 0.9
    """Divides the logits; 0 takes the likeliest code (greedy) and draws nothing."""
    top_p: float = 0.95
    """The likeliest codes that together reach this probability stay; 1 is off."""
    top_k: int | None = None
    """The k likeliest codes stay, and all that tie with the k-th; None or 0 is off."""
    min_p: float | None = None
    """Codes less likely than this share of the likeliest go; None is off."""
    repetition_penalty: float = 1.0
    """Makes the codes already generated less likely (above 1) or likelier (below 1)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ParameterError("temperature", self.temperature, "a number of at least 0")
        if not 0 <= self.top_p <= 1:
            raise ParameterError("top_p", self.top_p, "a number from 0 to 1")
        if self.top_k is not None and self.top_k < 0:
            raise ParameterError("top_k", self.top_k, "a whole number of at least 0, or None")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ParameterError("min_p", self.min_p, "a number from 0 to 1, or None")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ParameterError("repetition_penalty", self.repetition_penalty, "a number above 0")


@dataclass(frozen=True, slots=True)
class SpeechLayout:
    """Where the entries that may be sampled lie in a row of logits."""

    first_code: int
    """Index of `<|s_0|>`; the codes follow one another from there."""
    num_codes: int
    """How many codes there are."""
    end: int
    """Index of the end token, before or behind the block of codes."""

    def __post_init__(self) -> None:
        if self.num_codes < 1:
            raise ParameterError("num_codes", self.num_codes, "at least 1")
        if self.first_code < 0:
            raise ParameterError("first_code", self.first_code, "an index of at least 0")
        if self.end < 0 or 0 <= self.end - self.first_code < self.num_codes:
            raise ParameterError("end", self.end, "an index outside the block of codes")


class Sampler:
    """Draws the codes of one generation. Holds its random state, history and buffers: never shared.

    The order is that of transformers' `generate`: repetition penalty over the generated codes,
    temperature, top-k, top-p, min-p, then one draw. Probabilities are worked out in float64.
    Where equal probabilities lie on the border of top-p (where Hugging Face's sort leaves the
    choice open) the lower codes stay, so the same logits and seed always give the same code.

    Attributes:
        params: how it draws.
    """

    def __init__(
        self, params: SamplingParams, layout: SpeechLayout, seed: int | Sequence[int]
    ) -> None:
        """Make a sampler with its own random numbers.

        Raises:
            ParameterError: the seed is not made of whole numbers of at least 0.
        """
        self.params = params
        self._layout = layout
        slots = layout.num_codes + 1  # the codes, then the end token
        self._scores: NDArray[np.float32] = np.empty(slots, np.float32)
        self._weights: NDArray[np.float64] = np.empty(slots, np.float64)
        self._work: NDArray[np.float64] = np.empty(slots, np.float64)
        self._keep: NDArray[np.bool_] = np.empty(slots, np.bool_)
        self._history: NDArray[np.int64] = np.empty(256, np.int64)
        self._generated = 0
        self._random = _generator(seed)

    def sample(self, logits: NDArray[np.float32], *, allow_end: bool) -> int:
        """Return the next code, 0 to num_codes - 1, or `END`; one uniform number is drawn.

        Args:
            logits: one row, float32 [V]; only read.
            allow_end: whether the end token may be drawn.

        Raises:
            GraphError: the row is too short, or is not finite where it counts.
        """
        top = self._read(logits, allow_end=allow_end)
        if self.params.temperature == 0:
            slot = int(self._scores.argmax())
        else:
            kept, weights = self._kept(top)
            reached = np.cumsum(weights, out=self._work[: weights.size])
            drawn = self._random.random() * reached[-1]
            # "right" passes over entries of weight zero
            place = int(reached.searchsorted(drawn, side="right"))
            slot = place if kept is None else int(kept[place])
        if slot == self._layout.num_codes:
            return END
        self._remember(slot)
        return slot

    def candidates(
        self, logits: NDArray[np.float32], *, allow_end: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return what `sample` would choose from: codes (ascending, `END` last), probabilities.

        int64 [N] and float64 [N], which sum to 1. Draws nothing and remembers nothing; arguments
        and errors are those of `sample`.
        """
        top = self._read(logits, allow_end=allow_end)
        if self.params.temperature == 0:
            kept: NDArray[np.int64] | None = np.array([self._scores.argmax()], np.int64)
            weights = np.ones(1)
        else:
            kept, weights = self._kept(top)
        slots = np.arange(weights.size, dtype=np.int64) if kept is None else kept
        possible = weights > 0
        codes, weights = slots[possible], weights[possible]
        codes[codes == self._layout.num_codes] = END
        return codes, weights / weights.sum()

    def reseed(self, seed: int | Sequence[int]) -> None:
        """Start a new row of random numbers; the repetition penalty's history stays."""
        self._random = _generator(seed)

    def forget(self, count: int) -> None:
        """Take the last `count` sampled codes (`END` is none) out of the penalty's history.

        Raises:
            ParameterError: fewer codes were sampled.
        """
        if not 0 <= count <= self._generated:
            raise ParameterError("count", count, f"0 to {self._generated}, the codes sampled")
        self._generated -= count

    def _remember(self, code: int) -> None:
        if self._generated == self._history.size:
            self._history = np.concatenate((self._history, np.empty_like(self._history)))
        self._history[self._generated] = code
        self._generated += 1

    def _read(self, logits: NDArray[np.float32], *, allow_end: bool) -> float:
        """Fill `_scores` with what may be sampled, penalised, and return the largest."""
        layout, scores = self._layout, self._scores
        stop = layout.first_code + layout.num_codes
        if logits.ndim != 1 or logits.size < max(stop, layout.end + 1):
            raise GraphError(
                "logits",
                f"shape {list(logits.shape)}, expected one row of {max(stop, layout.end + 1)} "
                "entries or more",
            )
        scores[:-1] = logits[layout.first_code : stop]
        scores[-1] = logits[layout.end] if allow_end else -np.inf
        penalty = self.params.repetition_penalty
        if penalty != 1 and self._generated:
            codes = self._history[: self._generated]
            seen = scores[codes]
            # a code that occurs twice is written twice with the same value: penalised once
            scores[codes] = np.where(seen < 0, seen * penalty, seen / penalty)
        top = float(scores.max())
        if not math.isfinite(top):  # max() passes NaN on
            what = "all -inf" if top == -math.inf else "NaN or inf"
            raise GraphError(
                "logits",
                f"the scores of the speech tokens are {what}",
                hint="the model's weights are damaged or its numbers overflow",
            )
        return top

    def _kept(self, top: float) -> tuple[NDArray[np.int64] | None, NDArray[np.float64]]:
        """Return the slots that stay (None: all of them) and their weights, the likeliest 1.0."""
        params, scores = self.params, self._scores
        slots: NDArray[np.int64] | None = None
        if params.top_k and params.top_k < scores.size:
            border = np.partition(scores, scores.size - params.top_k)[-params.top_k]
            slots = np.flatnonzero(scores >= border)
            scores = scores[slots]
        weights, keep = self._weights[: scores.size], self._keep[: scores.size]
        np.subtract(scores, top, out=weights, dtype=np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature: -inf, weight zero
            np.divide(weights, params.temperature, out=weights)
        np.exp(weights, out=weights)
        filtered = False
        if params.top_p < 1:
            _nucleus(weights, params.top_p, keep, self._work)
            filtered = True
        if params.min_p is not None:
            likely = weights >= params.min_p
            keep[:] = keep & likely if filtered else likely
            filtered = True
        if not filtered:
            return slots, weights
        kept = np.flatnonzero(keep)
        return (kept if slots is None else slots[kept]), weights[kept]


def _nucleus(
    weights: NDArray[np.float64],
    top_p: float,
    keep: NDArray[np.bool_],
    work: NDArray[np.float64],
) -> None:
    """Mark the fewest, largest weights whose sum reaches `top_p` of the whole.

    Linear in N: the border is found by halving, each time into the half it lies in.

    Args:
        weights: float64 [N], not negative.
        top_p: share of the sum, 0 to 1; the largest weight stays in any case.
        keep: bool [N], the result.
        work: float64 [>= N], scratch.
    """
    total = weights.sum()
    # Weights below their share of the tail add up to less than the tail, so none of them stays.
    np.greater_equal(weights, (1 - top_p) * total / weights.size, out=keep)
    count = int(np.count_nonzero(keep))
    segment = work[:count]
    np.compress(keep, weights, out=segment)
    needed = top_p * total
    above, larger = 0.0, 0  # sum and number of the weights above the segment
    while segment.size > _SORTED_AT_ONCE:
        middle = segment.size // 2
        segment.partition(middle)
        upper = segment[middle:].sum()
        if above + upper >= needed:
            segment = segment[middle:]
        else:
            above += upper
            larger += segment.size - middle
            segment = segment[:middle]
    segment.sort()
    falling = segment[::-1]
    place = int((above + np.cumsum(falling)).searchsorted(needed))
    place = min(place, falling.size - 1)  # rounding can leave the sum a hair short
    border = falling[place]
    np.greater(weights, border, out=keep)
    ties = larger + place + 1 - int(np.count_nonzero(keep))
    keep[np.flatnonzero(weights == border)[:ties]] = True


def _generator(seed: int | Sequence[int]) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ParameterError("seed", seed, "whole numbers of at least 0") from error
