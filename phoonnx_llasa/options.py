"""extra_params -> options: every name, default and range in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from phoonnx_llasa.codec import StreamSettings
from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.sampling import SamplingParams

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Options:
    """How one text is to be spoken."""

    voice: str | None = None
    """Preset name; None takes the bundle's default, "none" lets the model invent a speaker."""
    seed: int | None = None
    """Same seed, text and preset: the same samples. None draws one."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    """Most codes per piece; None takes what the text's length and the context give."""
    max_chunk_chars: int = 300
    """Width of a piece in characters; a Chinese, Japanese or Korean one counts three."""
    stream: bool = True
    """Blocks as they come, or each piece decoded in one go."""
    windows: StreamSettings = field(default_factory=StreamSettings)
    sentence_silence: float = 0.0
    """Seconds of silence between pieces."""


def parse_options(
    extra_params: Mapping[str, Any], *, defaults: Mapping[str, Any] = _NOTHING
) -> Options:
    """Check what a caller asked for.

    Args:
        extra_params: by the names of the table in the README; unknown names are errors.
        defaults: the model's own, under what the caller set; unknown names are ignored.

    Raises:
        ParameterError: a name is unknown or a value out of range; it says what is allowed.
    """
    if not isinstance(extra_params, Mapping):
        raise ParameterError("extra_params", extra_params, "a mapping of names to values")
    for name in extra_params:
        if name not in _CHECKS:
            raise ParameterError(str(name), extra_params[name], "one of " + ", ".join(_CHECKS))
    given = {name: value for name, value in defaults.items() if name in _CHECKS} | dict(
        extra_params
    )
    values = {name: _CHECKS[name](name, value) for name, value in given.items()}
    return Options(
        sampling=SamplingParams(**_take(values, _SAMPLING)),
        windows=StreamSettings(**_take(values, _WINDOWS)),
        **values,
    )


def _take(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values.pop(name) for name in names if name in values}


def _number(
    lowest: float, highest: float, *, above: bool = False
) -> Callable[[str, object], float]:
    allowed = f"a number {'above' if above else 'from'} {lowest:g} to {highest:g}"

    def check(name: str, value: object) -> float:
        # numpy's numbers are Real too; NaN compares as False.
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ParameterError(name, value, allowed)
        try:
            number = float(value)
        except OverflowError as error:
            raise ParameterError(name, value, allowed) from error
        if not lowest <= number <= highest or (above and number == lowest):
            raise ParameterError(name, value, allowed)
        return number

    return check


def _integer(
    lowest: int, highest: int, *, off: tuple[object, ...] = ()
) -> Callable[[str, object], int | None]:
    allowed = f"an integer from {lowest} to {highest}"
    if off:
        allowed += ", or " + " or ".join(repr(value) for value in off) + " for off"

    def check(name: str, value: object) -> int | None:
        if any(value is word or (value == word and type(value) is type(word)) for word in off):
            return None
        # The host keeps its engines' numbers as floats: 300.0 is as good as 300.
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ParameterError(name, value, allowed)
        number = int(value)
        if not lowest <= number <= highest:
            raise ParameterError(name, value, allowed)
        return number

    return check


def _probability_or_off(name: str, value: object) -> float | None:
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    return _number(0.0, 1.0)(name, value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(name, value, "true or false")
    return bool(value)


def _preset_name(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ParameterError(name, value, "the name of a preset, or 'none'")
    return value


_CHECKS: Final[Mapping[str, Callable[[str, object], Any]]] = MappingProxyType(
    {
        "voice": _preset_name,
        "seed": _integer(0, (1 << 63) - 1, off=(None,)),
        "temperature": _number(0.0, 5.0),
        "top_p": _number(0.0, 1.0, above=True),
        "top_k": _integer(1, 1 << 24, off=(None, 0)),
        "min_p": _probability_or_off,
        "repetition_penalty": _number(0.1, 10.0),
        "max_new_tokens": _integer(1, 1 << 20, off=(None,)),
        "max_chunk_chars": _integer(1, 2_000),
        "stream": _flag,
        "block_codes": _integer(1, 1_000),
        "first_block_codes": _integer(1, 1_000),
        "lookback_codes": _integer(0, 1_000),
        "lookahead_codes": _integer(0, 1_000),
        "sentence_silence": _number(0.0, 10.0),
    }
)
#: All names that extra_params may have.
PARAMETERS: Final = tuple(_CHECKS)
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WINDOWS: Final = ("block_codes", "first_block_codes", "lookback_codes", "lookahead_codes")
