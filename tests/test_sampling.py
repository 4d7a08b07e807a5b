import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.sampling import END, Sampler, SamplingParams, SpeechLayout

TRUE_SIZE = 65_536
SMALL = SpeechLayout(first_code=3, num_codes=10, end=1)


def row_of(codes, end, layout, *, elsewhere=50.0):
    """A row of logits; what may not be sampled is far likelier than what may."""
    row = np.full(max(layout.end, layout.first_code + layout.num_codes) + 4, elsewhere, np.float32)
    row[layout.first_code : layout.first_code + layout.num_codes] = codes
    row[layout.end] = end
    row.setflags(write=False)
    return row


def hugging_face(scores, params, history=()):
    """What transformers' own classes make of the scores: the warped scores, float64 [N]."""
    rows = torch.tensor(np.asarray(scores, np.float32))[None]
    if params.repetition_penalty != 1 and len(history):
        ids = torch.tensor([history])
        rows = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, rows)
    # float64, so that the border of top-p is where the definition says, not float32's rounding
    rows = rows.double()
    steps = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p is not None:
        steps.append(MinPLogitsWarper(params.min_p))
    for step in steps:
        rows = step(None, rows)
    return rows[0]


def assert_agrees(sampler, codes, end, layout, *, allow_end, history=()):
    tokens, probabilities = sampler.candidates(row_of(codes, end, layout), allow_end=allow_end)
    scores = np.append(codes, end if allow_end else -np.inf)
    warped = hugging_face(scores, sampler.params, history)
    expected = torch.softmax(warped, -1).numpy()
    kept = np.flatnonzero(np.isfinite(warped.numpy()) & (expected > 0))
    slots = np.where(tokens == END, layout.num_codes, tokens)
    assert slots.tolist() == kept.tolist()
    np.testing.assert_allclose(probabilities, expected[kept], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("spread", [0.02, 1.0, 4.0, 12.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_p=1.0),
        SamplingParams(temperature=0.3, top_p=0.5),
        SamplingParams(temperature=1.7, top_p=1e-9),
        SamplingParams(top_p=0.0),
        SamplingParams(top_k=50, top_p=1.0),
        SamplingParams(top_k=1),
        SamplingParams(top_k=10**9),
        SamplingParams(top_k=0, top_p=0.9),
        SamplingParams(top_p=1.0, min_p=0.1),
        SamplingParams(top_p=1.0, min_p=0.0),
        SamplingParams(top_p=1.0, min_p=1.0),
        SamplingParams(temperature=0.8, top_k=200, top_p=0.9, min_p=0.05),
    ],
    ids=str,
)
def test_agrees_with_transformers_at_true_size(params, spread):
    layout = SpeechLayout(first_code=5, num_codes=TRUE_SIZE, end=2)
    random = np.random.default_rng(7)
    codes = random.normal(0, spread, TRUE_SIZE).astype(np.float32)
    assert_agrees(Sampler(params, layout, 0), codes, codes.max() - 0.01, layout, allow_end=True)


@settings(deadline=None, max_examples=150)
@given(
    codes=st.lists(st.integers(-12, 12), min_size=1, max_size=150),
    end=st.integers(-12, 12),
    allow_end=st.booleans(),
    temperature=st.floats(0.1, 3),
    top_k=st.none() | st.integers(1, 60),
    top_p=st.floats(0.01, 1),
    min_p=st.none() | st.floats(0, 1),
)
def test_agrees_with_transformers_on_ties(codes, end, allow_end, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature, top_p, top_k, min_p)
    layout = SpeechLayout(first_code=0, num_codes=len(codes), end=len(codes) + 3)
    scores = np.array([*codes, end if allow_end else -np.inf], np.float32)
    warped = hugging_face(scores, params).numpy()
    # No statement where a sum lies on the border to the last bit: rounding decides there.
    before = hugging_face(scores, SamplingParams(temperature, 1.0, top_k))
    sums = torch.softmax(before, -1).sort().values.cumsum(-1)
    assume(((sums - (1 - top_p)).abs() > 1e-9).all() or top_p == 1)
    ratios = torch.softmax(before, -1) / torch.softmax(before, -1).max()
    assume(min_p is None or ((ratios - min_p).abs() > 1e-9).all())

    sampler = Sampler(params, layout, 0)
    tokens, probabilities = sampler.candidates(
        row_of(codes, end, layout, elsewhere=99), allow_end=allow_end
    )
    slots = np.where(tokens == END, layout.num_codes, tokens)
    # Which of several equal ones stay at the border of top-p is left open by transformers.
    kept = warped[np.isfinite(warped)]
    np.testing.assert_allclose(np.sort(scores[slots] / temperature), np.sort(kept), rtol=1e-6)
    expected = np.exp(kept - kept.max())
    np.testing.assert_allclose(np.sort(probabilities), np.sort(expected / expected.sum()), 1e-6)


def test_probabilities_agree_with_transformers_in_float32_too():
    random = np.random.default_rng(1)
    codes = random.normal(0, 3, TRUE_SIZE).astype(np.float32)
    layout = SpeechLayout(first_code=0, num_codes=TRUE_SIZE, end=TRUE_SIZE)
    rows = torch.tensor(np.append(codes, np.float32(0)))[None]
    for step in (TemperatureLogitsWarper(0.9), TopPLogitsWarper(0.95)):
        rows = step(None, rows)
    expected = torch.softmax(rows, -1)[0].numpy()
    tokens, probabilities = Sampler(SamplingParams(), layout, 0).candidates(
        row_of(codes, 0, layout), allow_end=True
    )
    actual = np.zeros(TRUE_SIZE + 1)
    actual[np.where(tokens == END, TRUE_SIZE, tokens)] = probabilities
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_top_k_keeps_everything_that_ties_with_the_last():
    codes = [5, 4, 4, 4, 1, 0, 0, 0, 0, 0]
    sampler = Sampler(SamplingParams(top_k=2, top_p=1.0), SMALL, 0)
    tokens, _ = sampler.candidates(row_of(codes, 4, SMALL), allow_end=True)
    assert tokens.tolist() == [0, 1, 2, 3, END]


def test_top_p_takes_the_lowest_codes_of_equal_ones():
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=0.25), SMALL, 0)
    tokens, probabilities = sampler.candidates(row_of([1] * 10, 1, SMALL), allow_end=True)
    assert tokens.tolist() == [0, 1, 2]  # 3 of 11 are the first to reach a quarter
    np.testing.assert_allclose(probabilities, 1 / 3)


def test_top_p_a_hair_below_one_keeps_nearly_everything():
    layout = SpeechLayout(first_code=0, num_codes=3_000, end=3_000)
    sampler = Sampler(SamplingParams(top_p=float(np.nextafter(1, 0))), layout, 0)
    random = np.random.default_rng(8)
    for _ in range(50):
        row = row_of(random.normal(0, 1, 3_000), 0.0, layout)
        tokens, _ = sampler.candidates(row, allow_end=True)
        assert len(tokens) > 2_990


@pytest.mark.parametrize("end", [0, 13])
def test_end_is_found_before_and_behind_the_codes(end):
    layout = SpeechLayout(first_code=3, num_codes=10, end=end)
    sampler = Sampler(SamplingParams(), layout, 0)
    assert sampler.sample(row_of([0] * 10, 40, layout), allow_end=True) == END


def test_only_speech_is_sampled_and_the_end_only_where_it_may():
    sampler = Sampler(SamplingParams(temperature=5.0, top_p=1.0), SMALL, 3)
    row = row_of(np.zeros(10), 60.0, SMALL, elsewhere=90.0)
    drawn = {sampler.sample(row, allow_end=False) for _ in range(300)}
    assert drawn == set(range(10))


def test_temperature_zero_takes_the_likeliest_and_draws_nothing():
    sampler = Sampler(SamplingParams(temperature=0.0, top_k=3), SMALL, 0)
    codes = [0, 1, 7, 3, 7, 0, 0, 0, 0, 0]
    assert [sampler.sample(row_of(codes, 6, SMALL), allow_end=True) for _ in range(3)] == [2, 2, 2]
    tokens, probabilities = sampler.candidates(row_of(codes, 6, SMALL), allow_end=True)
    assert (tokens.tolist(), probabilities.tolist()) == ([2], [1.0])
    assert sampler.sample(row_of(codes, 8, SMALL), allow_end=True) == END


def test_a_tiny_temperature_is_greedy_without_a_warning(recwarn):
    sampler = Sampler(SamplingParams(temperature=1e-310, top_p=1.0), SMALL, 0)
    codes = [0, 1, 7, -np.inf, 3, -9e37, 0, 0, 0, 0]
    assert sampler.sample(row_of(codes, 6, SMALL), allow_end=True) == 2
    assert not recwarn.list


def test_draws_follow_the_probabilities():
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=1.0), SMALL, 11)
    codes = np.log([0.4, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.005, 0.003, 0.002])
    row = row_of(codes, np.log(0.01), SMALL)
    drawn = [sampler.sample(row, allow_end=True) for _ in range(20_000)]
    shares = [drawn.count(token) / len(drawn) for token in (0, 1, 2, 3, END)]
    # four standard deviations of 0.4 are 0.014
    np.testing.assert_allclose(shares, [0.4, 0.25, 0.15, 0.1, 0.01], atol=0.014)


def test_one_uniform_number_per_step_taken_through_the_cumulative_sum():
    random = np.random.default_rng(5)
    sampler = Sampler(SamplingParams(top_k=7), SMALL, (42, 1))
    twin = np.random.default_rng((42, 1))
    for _ in range(200):
        row = row_of(random.normal(0, 2, 10), 1.0, SMALL)
        tokens, probabilities = sampler.candidates(row, allow_end=True)
        expected = tokens[np.cumsum(probabilities).searchsorted(twin.random(), side="right")]
        assert sampler.sample(row, allow_end=True) == expected


def test_reseed_repeats_the_draws():
    row = row_of(np.zeros(10), 0.0, SMALL)
    sampler = Sampler(SamplingParams(), SMALL, (7, 0))
    first = [sampler.sample(row, allow_end=False) for _ in range(30)]
    other = [sampler.sample(row, allow_end=False) for _ in range(30)]
    sampler.reseed((7, 0))
    assert [sampler.sample(row, allow_end=False) for _ in range(30)] == first != other


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_repetition_penalty_is_transformers_over_the_generated_codes(penalty):
    params = SamplingParams(top_p=0.9, repetition_penalty=penalty)
    sampler = Sampler(params, SMALL, 2)
    random = np.random.default_rng(3)
    history = []
    for _ in range(40):
        codes = random.normal(0, 2, 10).astype(np.float32)
        assert_agrees(sampler, codes, 1.0, SMALL, allow_end=True, history=history)
        history.append(sampler.sample(row_of(codes, 1.0, SMALL), allow_end=False))


def test_forgotten_codes_are_not_penalised():
    params = SamplingParams(temperature=0.0, repetition_penalty=4.0)
    sampler = Sampler(params, SMALL, 0)
    row = row_of([9, 8, 7, 6, 5, 0, 0, 0, 0, 0], -5.0, SMALL)
    assert [sampler.sample(row, allow_end=True) for _ in range(3)] == [0, 1, 2]
    sampler.forget(2)
    assert [sampler.sample(row, allow_end=True) for _ in range(2)] == [1, 2]
    sampler.forget(3)
    assert sampler.sample(row, allow_end=True) == 0
    with pytest.raises(ParameterError, match="0 to 1"):
        sampler.forget(2)


def test_the_history_grows_past_its_first_buffer():
    layout = SpeechLayout(first_code=0, num_codes=700, end=700)
    sampler = Sampler(SamplingParams(temperature=0.0, repetition_penalty=1e6), layout, 0)
    row = row_of(np.linspace(900, 800, 700), 0.0, layout)
    assert [sampler.sample(row, allow_end=False) for _ in range(700)] == list(range(700))


@pytest.mark.parametrize(
    ("value", "what"), [(np.nan, "NaN or inf"), (np.inf, "NaN or inf"), (-np.inf, "all -inf")]
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_scores_that_are_no_numbers_are_a_graph_error(value, what, temperature):
    sampler = Sampler(SamplingParams(temperature), SMALL, 0)
    codes = np.full(10, value)
    if value > 0 or np.isnan(value):
        codes[1:] = 0.0  # one is enough
    with pytest.raises(GraphError, match=what):
        sampler.sample(row_of(codes, 5.0, SMALL), allow_end=False)
    assert sampler.sample(row_of(np.arange(10) * 40, 0, SMALL), allow_end=True) == 9


def test_what_may_not_be_sampled_may_be_anything():
    sampler = Sampler(SamplingParams(), SMALL, 0)
    row = row_of(np.arange(10) * 40, np.nan, SMALL, elsewhere=np.nan)
    assert sampler.sample(row, allow_end=False) == 9


@pytest.mark.parametrize("shape", [(12,), (1, 20), ()])
def test_a_row_of_the_wrong_shape_is_a_graph_error(shape):
    with pytest.raises(GraphError, match="13"):
        Sampler(SamplingParams(), SMALL, 0).sample(np.zeros(shape, np.float32), allow_end=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
    ],
)
def test_parameters_out_of_range_are_named(name, value):
    with pytest.raises(ParameterError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("layout", [(0, 0, 5), (-1, 4, 5), (3, 10, 3), (3, 10, 12), (3, 10, -1)])
def test_a_layout_that_cannot_be_is_refused(layout):
    with pytest.raises(ParameterError):
        SpeechLayout(*layout)


@pytest.mark.parametrize("seed", [-1, (3, -4), 1.5])
def test_a_bad_seed_is_named(seed):
    with pytest.raises(ParameterError, match="seed"):
        Sampler(SamplingParams(), SMALL, seed)
