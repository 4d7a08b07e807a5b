"""Llasa speech models for phoonnx: text to streaming audio with ONNX Runtime, no torch.

Importing this package registers its voices with phoonnx, or has them registered as soon as
phoonnx is imported. The names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from phoonnx_llasa._version import __version__
from phoonnx_llasa_autoload import install as _install

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import fetch_bundle, open_bundle
    from phoonnx_llasa.errors import LlasaError
    from phoonnx_llasa.host.voice import LlasaVoice
    from phoonnx_llasa.options import Options
    from phoonnx_llasa.synthesis import Synthesizer

__all__ = [
    "LlasaError",
    "LlasaVoice",
    "Options",
    "Synthesizer",
    "__version__",
    "fetch_bundle",
    "open_bundle",
]

_HOMES = {
    "LlasaError": "errors",
    "LlasaVoice": "host.voice",
    "Options": "options",
    "Synthesizer": "synthesis",
    "fetch_bundle": "bundle",
    "open_bundle": "bundle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_install(force=True)
