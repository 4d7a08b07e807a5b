"""The compact graph's logits against the published one's, at every position of a long context.

    python -m benchmarks.parity [--bundle FOLDER] [--positions 1500] [--every 1] [--json FILE]

Both are fed the same random codes one by one, whatever they would have chosen, and all logits that
may be sampled are compared at each position; then whole prompts in one go, and 48 tokens that each
finds most likely by itself. At true size this takes as long as saying 2 x 1,500 codes; with
``--every 10`` nine of ten codes are fed in one go and only the tenth is a step that is compared.

Ends with an error when a difference is over 2e-5 of the largest logit or a greedy token is another.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.bundles import SIZES, BuildError, default_cache, random_bundle
from benchmarks.engines import Say, Subject
from phoonnx_llasa.graph.compare import RowDecoder, common_rows, greedy_path
from phoonnx_llasa.graph.rewriting import open_compact
from phoonnx_llasa.language_model import open_published

#: float32 sums of 8,192 products, taken in another order.
LIMIT: Final = 2e-5
GREEDY_TOKENS: Final = 48
_GREEDY_PROMPT: Final = 32
_PROMPTS: Final = (100, 300, 600, 1500)


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest difference of a logit over some positions."""

    rows: int
    """Positions compared."""
    absolute: float
    relative: float
    """To the largest logit of the same position."""
    position: int
    """Tokens in the cache where ``relative`` is largest."""
    largest_logit: float
    """There."""
    same_choice: int
    """Positions where both have the same likeliest token."""


@dataclass(frozen=True, slots=True)
class Parity:
    """What was found."""

    steps: Worst
    """Token by token."""
    prompts: Worst
    """Whole prompts in one go."""
    greedy: int
    """Equal tokens before the first other one, of GREEDY_TOKENS."""

    @property
    def holds(self) -> bool:
        """Whether the two count as the same."""
        within = max(self.steps.relative, self.prompts.relative) <= LIMIT
        return within and self.greedy == GREEDY_TOKENS


def measure_parity(
    subject: Subject,
    positions: int,
    say: Say,
    *,
    every: int = 1,
    prompts: Sequence[int] = _PROMPTS,
) -> Parity:
    """Compare; both graphs are mapped and share their pages of the weights."""
    reference = open_published(subject.bundle.model).decoder()
    candidate = open_compact(
        subject.bundle.model, context_length=subject.context_length, rows=subject.rows
    ).decoder()
    ids = subject.tokens(positions)
    found = []
    for first in range(0, positions - every + 1, every):
        length = first + every
        if every > 1:
            reference.feed(ids[first : length - 1])
            candidate.feed(ids[first : length - 1])
        found.append(_compare(reference, candidate, ids[length - 1 : length], length))
        if len(found) % 50 == 0:
            say(f"up to position {length}: differences up to {_worst(found).relative:.2g}")
    steps = _worst(found)
    found = []
    for length in (count for count in prompts if count <= positions):
        reference.truncate(0)
        candidate.truncate(0)
        found.append(_compare(reference, candidate, ids[:length], length))
        say(f"a prompt of {length}: {found[-1].relative:.2g}")
    say(f"{GREEDY_TOKENS} tokens by their own choice")
    chosen = [
        greedy_path(decoder, ids[:_GREEDY_PROMPT], GREEDY_TOKENS, allowed=subject.rows)
        for decoder in (reference, candidate)
    ]
    equal = [a == b for a, b in zip(*chosen, strict=True)]
    return Parity(steps, _worst(found), (*equal, False).index(False))


def _compare(
    reference: RowDecoder, candidate: RowDecoder, ids: Sequence[int], position: int
) -> Worst:
    """Feed both the same tokens and compare the logits after the last."""
    rows = reference.feed(ids), candidate.feed(ids)
    expected, found = common_rows(*rows, reference.row_offset, candidate.row_offset)
    absolute = float(abs(found - expected).max())
    largest = float(abs(expected).max())
    same = int(expected.argmax() == found.argmax())
    return Worst(1, absolute, absolute / largest, position, largest, same)


def _worst(found: Sequence[Worst]) -> Worst:
    if not found:
        return Worst(0, 0.0, 0.0, 0, 0.0, 0)
    worst = max(found, key=lambda one: one.relative)
    return Worst(
        len(found),
        max(one.absolute for one in found),
        worst.relative,
        worst.position,
        worst.largest_logit,
        sum(one.same_choice for one in found),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--size", choices=SIZES, default="true", help="of the one to build")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    parser.add_argument("--positions", type=int, default=1500)
    parser.add_argument("--every", type=int, default=1, help="compare at each so many positions")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    given = parser.parse_args(arguments)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", file=sys.stderr, flush=True)

    try:
        bundle = given.bundle or random_bundle(given.cache, given.size, say)
    except BuildError as error:
        sys.exit(str(error))
    subject = Subject.open(bundle, given.cache)
    found = measure_parity(subject, given.positions, say, every=given.every)
    if given.json:
        given.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    for name, worst in (("token by token", found.steps), ("prompts in one go", found.prompts)):
        print(
            f"{name}: {worst.rows} positions, logits differ by at most {worst.absolute:.2g}, or "
            f"{worst.relative:.2g} of the largest ({worst.largest_logit:.3g}, at position "
            f"{worst.position}); the same likeliest token at {worst.same_choice}"
        )
    print(f"greedy: {found.greedy} of {GREEDY_TOKENS} tokens equal")
    if not found.holds:
        sys.exit(f"more than {LIMIT:g} of the largest logit, or another token")


if __name__ == "__main__":
    main()
