"""Which phonemes each letter of a word stands for, learned from the words themselves.

The teacher times phonemes, the language model reads letters. Counting how often each letter takes
which phonemes under the best monotone alignment, then aligning again, settles in a few rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

STRESS = "ˈˌ"
PUNCTUATION = "'.,?!"
ROUNDS = 4


def units(phonemes: str) -> list[tuple[str, int]]:
    """Phonemes without stress marks and punctuation, each with the index of its character."""
    return [(p, i) for i, p in enumerate(phonemes) if p not in STRESS and p not in PUNCTUATION]


class Aligner:
    """Letters -> phonemes: none, one or two each."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Learn from (letters, phonemes) pairs, one per different word."""
        words = [(word, "".join(p for p, _ in units(said))) for word, said in pairs]
        self._costs: dict[tuple[str, str], float] = {}
        for _ in range(ROUNDS):
            counts: Counter[tuple[str, str]] = Counter()
            for word, said in words:
                for letter, (first, last) in zip(word, self.align(word, said) or (), strict=False):
                    counts[letter, said[first:last]] += 1
            letters: Counter[str] = Counter()
            for (letter, _), count in counts.items():
                letters[letter] += count
            self._costs = {key: -math.log(count / letters[key[0]]) for key, count in counts.items()}

    def _cost(self, letter: str, said: str) -> float:
        if not self._costs:  # first round: one phoneme a letter where the lengths allow it
            same = len(said) == 1 and letter == said
            return 0.0 if same else (0.5, 0.4, 1.5)[len(said)]
        return self._costs.get((letter, said), 9.0)

    def align(self, word: str, said: str) -> list[tuple[int, int]] | None:
        """Per letter the range of phonemes it stands for, or None if there are too many."""
        best = {0: (0.0, ())}
        for letter in word:
            following: dict[int, tuple[float, tuple]] = {}
            for at, (cost, path) in best.items():
                for taken in range(min(2, len(said) - at) + 1):
                    total = cost + self._cost(letter, said[at : at + taken])
                    if at + taken not in following or total < following[at + taken][0]:
                        following[at + taken] = (total, (path, (at, at + taken)))
            best = following
        if len(said) not in best:
            return None
        ranges: list[tuple[int, int]] = []
        path = best[len(said)][1]
        while path:
            path, last = path
            ranges.append(last)
        return ranges[::-1]


def letter_ends(
    aligner: Aligner, text: str, phonemes: list[str], ends: list[list[float]], gaps: list[float]
) -> list[float] | None:
    """For every character of a text the frame in which its sound ends; None if it does not align.

    A silent letter ends where the one before it did. A word's punctuation and the space after it
    take the pause that follows.
    """
    result: list[float] = []
    at = 0.0
    words = text.split(" ")
    for index, (word, said, times) in enumerate(zip(words, phonemes, ends, strict=True)):
        letters = word.rstrip(".,?!")
        sounds = units(said)
        ranges = aligner.align(letters, "".join(p for p, _ in sounds))
        if ranges is None or not sounds:
            return None
        for _, last in ranges:
            at = max(at, times[sounds[last - 1][1]]) if last else at
            result.append(at)
        for _ in word[len(letters) :]:
            at = max(at, times[-1])
            result.append(at)
        if index < len(words) - 1:
            at = max(at, gaps[index])
            result.append(at)
    return result
