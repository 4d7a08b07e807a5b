"""The one shared thing of this package: models in use, so that no weights are loaded twice."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from phoonnx_llasa.bundle import Bundle
from phoonnx_llasa.graph.external_data import external_extents
from phoonnx_llasa.synthesis import Synthesizer

LOG = logging.getLogger(__name__)


class SynthesizerCache:
    """Synthesizers by the files they were loaded from.

    All presets and languages of a bundle speak through one synthesizer. It is held weakly: when
    the last voice that uses it is gone, so are its weights.
    """

    def __init__(self, load: Callable[..., Synthesizer] = Synthesizer.open) -> None:
        self._load = load
        self._loaded: weakref.WeakValueDictionary[object, Synthesizer] = (
            weakref.WeakValueDictionary()
        )
        # One per model ever loaded, which are few: taking one out again is a race not worth having.
        self._loading: dict[object, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, bundle: Bundle, *, providers: Sequence[Any]) -> Synthesizer:
        """The synthesizer of a bundle, loaded if nobody has it loaded.

        Threads that ask for the same bundle at once load it once; other bundles do not wait.

        Args:
            providers: onnxruntime execution providers, best first, already resolved.

        Raises:
            BundleError: a file is broken or does not fit the others.
        """
        key = _identity(bundle, providers)
        with self._lock:
            lock = self._loading.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                synthesizer = self._loaded.get(key)
            if synthesizer is None:
                synthesizer = self._load(bundle, providers=providers)
                _warn_of_fallback(synthesizer, providers)
                with self._lock:
                    self._loaded[key] = synthesizer
            return synthesizer


def _identity(bundle: Bundle, providers: Sequence[Any]) -> object:
    """What makes two loads the same: the very files, unchanged since, on the same providers."""
    sidecars = [bundle.model.parent / name for name in sorted(external_extents(bundle.model))]
    files = [bundle.model, *sidecars, bundle.codec, bundle.tokenizer]
    if bundle.voices is not None:
        files.append(bundle.voices)
    return tuple(map(_version, files)), repr(bundle.config), repr(list(providers))


def _warn_of_fallback(synthesizer: Synthesizer, providers: Sequence[Any]) -> None:
    """Say that a provider did not start: onnxruntime takes the next one without a word."""
    active = synthesizer.language_model.session.get_providers()
    for provider in providers[:1]:
        name = provider if isinstance(provider, str) else provider[0]
        if name not in active:
            LOG.warning("%s does not work here; running on %s", name, ", ".join(active))


def _version(path: Path) -> tuple[str, int, int]:
    # The hub's cache reaches one blob through several links.
    resolved = path.resolve()
    stat = resolved.stat()
    return str(resolved), stat.st_size, stat.st_mtime_ns


#: Shared by the whole process.
SYNTHESIZERS: Final = SynthesizerCache()
