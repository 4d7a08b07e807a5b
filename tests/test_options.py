"""extra_params: defaults, ranges, unknown names."""

import math

import numpy as np
import pytest

from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.options import Options, parse_options
from phoonnx_llasa.sampling import SamplingParams


def test_nothing_asked_for_gives_the_documented_defaults() -> None:
    options = parse_options({})
    assert options == Options()
    assert options.sampling == SamplingParams(
        temperature=0.9, top_p=0.95, top_k=None, min_p=None, repetition_penalty=1.0
    )
    assert (options.max_chunk_chars, options.stream, options.sentence_silence) == (300, True, 0.0)


def test_a_caller_overrides_the_model_which_overrides_the_defaults() -> None:
    options = parse_options(
        {"temperature": 0.2}, defaults={"temperature": 0.7, "top_k": 20, "noise_scale": 0.6}
    )
    assert options.sampling.temperature == 0.2
    assert options.sampling.top_k == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0.9"),
        ("temperature", True),
        ("temperature", None),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", "50"),
        ("min_p", 1.5),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("seed", -1),
        ("seed", 1 << 63),
        ("seed", "42"),
        ("seed", False),
        ("max_new_tokens", 0),
        ("max_chunk_chars", 0),
        ("max_chunk_chars", 1_000_000),
        ("stream", 1),
        ("stream", "false"),
        ("block_codes", 0),
        ("first_block_codes", 0),
        ("lookback_codes", -1),
        ("lookahead_codes", -1),
        ("sentence_silence", -0.5),
        ("sentence_silence", 1e9),
        ("voice", 3),
        ("temperature", 10**400),
        ("voice", " "),
    ],
)
def test_a_value_out_of_range_says_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match="allowed: ") as caught:
        parse_options({name: value})
    assert caught.value.name == name


def test_a_number_too_long_to_print_is_refused_all_the_same() -> None:
    with pytest.raises(ParameterError, match="a very large int"):
        parse_options({"seed": 10**5000})


@pytest.mark.parametrize("extra", [[1], "abc", 5])
def test_what_is_no_mapping_is_refused(extra: object) -> None:
    with pytest.raises(ParameterError, match="extra_params"):
        parse_options(extra)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    options = parse_options(
        {"seed": np.int64(3), "temperature": np.float32(0.5), "stream": np.bool_(False)}
    )
    assert (options.seed, options.sampling.temperature, options.stream) == (3, 0.5, False)
    assert type(options.seed) is int
    assert options.stream is False


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(ParameterError, match="temprature") as caught:
        parse_options({"temprature": 0.5})
    assert "temperature" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "off"), [("top_k", 0), ("top_k", None), ("min_p", 0), ("min_p", None)]
)
def test_filters_can_be_turned_off(name: str, off: object) -> None:
    options = parse_options({name: off}, defaults={"top_k": 20, "min_p": 0.1})
    assert getattr(options.sampling, name) is None


def test_whole_floats_are_integers_as_in_the_host() -> None:
    options = parse_options({"max_new_tokens": 1000.0, "max_chunk_chars": 200.0, "seed": 3.0})
    assert (options.max_new_tokens, options.max_chunk_chars, options.seed) == (1000, 200, 3)
