"""Figures of one model's logits against another's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.graph.compare import (
    Comparison,
    Limits,
    common_rows,
    compare_along,
    compare_rows,
    greedy_path,
    sampled_path,
    top_p_set,
    violations,
)


class Table:
    """A model whose logits follow from the last token and the number of tokens before it."""

    def __init__(self, table: np.ndarray, *, row_offset: int = 0) -> None:
        self.table = table.astype(np.float32)
        self.row_offset = row_offset
        self.fed: list[int] = []

    def feed(self, ids: Sequence[int]) -> np.ndarray:
        self.fed += ids
        return self.table[self.fed[-1]] + np.float32(0.01 * len(self.fed))

    def truncate(self, length: int) -> None:
        del self.fed[length:]


RNG = np.random.default_rng(3)
TABLE = RNG.normal(0, 2, (12, 12))


def test_a_model_is_like_itself() -> None:
    comparison = compare_along(Table(TABLE), Table(TABLE), [1, 2], [3, 4, 5])
    assert comparison.steps == 3
    assert comparison.summary() == {
        "steps": 3,
        "max_abs": 0.0,
        "mean_abs": 0.0,
        "relative": 0.0,
        "kl_mean": 0.0,
        "kl_p95": 0.0,
        "greedy_agreement": 1.0,
        "top_p_overlap": 1.0,
    }


def test_every_step_is_fed_once_and_compared_before_it() -> None:
    other = TABLE.copy()
    other[4] += np.linspace(0, 1, 12)  # seen only after token 4
    reference, candidate = Table(TABLE), Table(other)
    reference.feed([7, 7])
    comparison = compare_along(reference, candidate, [1, 2], [3, 4, 5])
    assert reference.fed == candidate.fed == [1, 2, 3, 4]
    np.testing.assert_allclose(comparison.max_abs, [0, 0, 1], atol=1e-6)
    np.testing.assert_allclose(comparison.mean_abs, [0, 0, 0.5], atol=1e-6)
    assert comparison.kl[:2].tolist() == [0, 0]
    assert comparison.kl[2] > 0


def test_the_divergence_is_the_textbooks() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    figures = compare_rows(np.log(p) + 3, np.log(q) - 1)
    assert figures[3] == pytest.approx(0.5 * np.log(2) + 0.25 * np.log(0.5))
    assert figures[4] is False
    hotter = compare_rows(np.log(p), np.log(q), temperature=2.0)
    assert 0 < hotter[3] < figures[3]


def test_the_top_p_set_is_the_fewest_that_reach_it() -> None:
    p = np.array([0.1, 0.5, 0.15, 0.25])
    assert top_p_set(p, 0.7).tolist() == [False, True, False, True]
    assert top_p_set(p, 0.76).tolist() == [False, True, True, True]
    assert top_p_set(p, 1e-9).tolist() == [False, True, False, False]
    expected = np.log([0.1, 0.5, 0.15, 0.25])
    swapped = np.log([0.25, 0.5, 0.15, 0.1])
    assert compare_rows(expected, swapped, top_p=0.7)[5] == pytest.approx(1 / 3)


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(0.01, 1)), st.floats(0.01, 1))
def test_the_top_p_set_has_its_mass_and_no_more(weights: np.ndarray, top_p: float) -> None:
    p = weights / weights.sum()
    kept = top_p_set(p, top_p)
    assert p[kept].sum() >= top_p - 1e-9
    assert p[kept].sum() - p[kept].min() < top_p + 1e-9
    assert kept.all() or p[kept].min() >= p[~kept].max()


def test_only_tokens_that_both_have_are_compared() -> None:
    part = Table(TABLE[:, 4:9] + 0.25, row_offset=4)
    comparison = compare_along(Table(TABLE), part, [1], [2, 3])
    np.testing.assert_allclose(comparison.max_abs, 0.25, rtol=1e-5)
    np.testing.assert_allclose(comparison.kl, 0, atol=1e-9)
    first, second = common_rows(np.arange(10, dtype=np.float32), np.ones(3, np.float32), 0, 8)
    assert (first.tolist(), len(second)) == ([8, 9], 2)
    with pytest.raises(ParameterError, match="both have"):
        common_rows(np.ones(3, np.float32), np.ones(3, np.float32), 0, 3)


def test_nothing_to_compare_is_an_error() -> None:
    for prompt, path in (([], [1]), ([1], [])):
        with pytest.raises(ParameterError, match="at least one token"):
            compare_along(Table(TABLE), Table(TABLE), prompt, path)


def test_what_goes_over_a_limit_is_named() -> None:
    noisy = Table(TABLE + RNG.normal(0, 0.5, TABLE.shape))
    comparison = compare_along(Table(TABLE), noisy, [1], [2, 3, 4, 5])
    assert violations(comparison, Limits()) == []
    assert violations(comparison, Limits(max_abs=10, kl_mean=10, greedy_agreement=0)) == []
    found = violations(comparison, Limits(max_abs=1e-3, kl_p95=1e-6, top_p_overlap=1.01))
    assert [text.split()[0] for text in found] == ["max_abs", "kl_p95", "top_p_overlap"]
    assert found[0].endswith("allowed is at most 0.001")
    assert found[2].endswith("allowed is at least 1.01")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_never_passes(value: float) -> None:
    broken = TABLE.copy()
    broken[3, 5] = value
    comparison = compare_along(Table(TABLE), Table(broken), [1], [3, 4])
    limits = Limits(max_abs=1e30, mean_abs=1e30, relative=1e30, kl_mean=1e30)
    assert len(violations(comparison, limits)) == 4


def test_paths_are_the_models_own() -> None:
    greedy = greedy_path(Table(TABLE), [1, 2], 5)
    token, expected = 2, []
    for _ in range(5):
        token = int(TABLE[token].argmax())
        expected.append(token)
    assert greedy == expected
    part = Table(TABLE[:, 4:], row_offset=4)
    assert all(6 <= token <= 8 for token in greedy_path(part, [1], 20, allowed=(6, 8)))
    drawn = [sampled_path(Table(TABLE), [1], 30, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sampled_path(Table(TABLE), [1, 2], 5, seed=0, top_p=1e-6) == expected
    allowed = sampled_path(part, [1], 30, seed=0, temperature=5.0, allowed=(6, 8))
    assert set(allowed) == {6, 7, 8}


def test_a_comparison_has_one_number_a_step() -> None:
    comparison = compare_along(Table(TABLE), Table(TABLE), [1], [2, 3, 4])
    for name in Comparison.__slots__:
        assert getattr(comparison, name).shape == (3,)
