"""All that is changed in the host, in one place; for other engines nothing is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

LOG = logging.getLogger(__name__)

#: Priority of the host's own engine of this name among those that look at a config by themselves.
_DETECT_PRIORITY: Final = 15

#: On everything we put in place of something of the host's: what was there before.
_ORIGINAL: Final = "_phoonnx_llasa_original"
_NOTHING: Final = object()

_LOCK: Final = threading.RLock()


def register() -> None:
    """Make phoonnx speak Llasa through this package; again does nothing.

    - The engine "llasa" is `LlasaAdapter`.
    - ``TTSModelInfo.load`` gives a `LlasaVoice` for entries of that engine.
    - ``TTSModelManager.load_voice(voice_id)`` loads any voice of the host by its id.
    - The host's catalogue has our entries, behind its own, so that no default voice changes.
    - Files that come with this package can be named in an entry (`catalogue.SCHEME`).
    - The weights of a Llasa entry are counted once where the host measures it.

    What a version of the host does not have is left out with a warning, and the rest is done.
    """
    with _LOCK:
        host = import_module("phoonnx.model_manager")
        _register_engine()
        info, manager = getattr(host, "TTSModelInfo", None), getattr(host, "TTSModelManager", None)
        _wrap(info, "load", _load, "Llasa voices will not stream")
        _wrap(info, "artifact_urls", _artifact_urls, "memory budgets count Llasa's weights twice")
        _wrap(manager, "voice_index_files", _voice_index_files, "our voices are not listed")
        _wrap(manager, "load_voice", _load_voice, "voices cannot be loaded by id", optional=True)
        _wrap(host, "_resolve", _resolve, "the built-in voice does not load")
        _wrap(host, "_cached_path", _cached_path, "the built-in voice counts as not downloaded")


def unregister() -> None:
    """Undo `register`: everything of the host is as it was. Voices that are loaded go on."""
    with _LOCK:
        host = import_module("phoonnx.model_manager")
        for owner, names in (
            (host.TTSModelInfo, ("load", "artifact_urls")),
            (host.TTSModelManager, ("voice_index_files", "load_voice")),
            (host, ("_resolve", "_cached_path")),
        ):
            for name in names:
                original = _original(vars(owner).get(name))
                if original is _NOTHING:
                    continue
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
        engines = import_module("phoonnx.engines")
        own = import_module("phoonnx.engines.llasa").LlasaAdapter
        engines.register_engine("llasa", own, detect_priority=_DETECT_PRIORITY)


def _register_engine() -> None:
    engines = import_module("phoonnx.engines")
    if not hasattr(engines, "register_engine"):
        _miss("engines.register_engine", "TTSVoice.load uses the host's own engine for Llasa")
        return
    from phoonnx_llasa.host.adapter import LlasaAdapter

    engines.register_engine("llasa", LlasaAdapter, detect_priority=_DETECT_PRIORITY)


def _wrap(
    owner: Any, name: str, make: Callable[[Any], Any], loss: str, *, optional: bool = False
) -> None:
    """Put what ``make`` makes of an attribute in its place, unless that has been done.

    Args:
        make: takes what was there, None if there was nothing.
        loss: what does not work where the attribute is missing.
        optional: whether it may be missing.
    """
    found = vars(owner).get(name) if owner is not None else None
    if found is None and (owner is None or not optional):
        _miss(f"{getattr(owner, '__name__', 'model_manager')}.{name}", loss)
        return
    if _original(found) is not _NOTHING:
        return
    wrapper = make(found)
    setattr(getattr(wrapper, "__func__", wrapper), _ORIGINAL, found)
    setattr(owner, name, wrapper)


def _original(found: Any) -> Any:
    """What a wrapper of ours has replaced; `_NOTHING` for what is not ours."""
    return getattr(getattr(found, "__func__", found), _ORIGINAL, _NOTHING)


def _miss(what: str, loss: str) -> None:
    LOG.warning("phoonnx %s has no %s, so %s", version("phoonnx"), what, loss)


def _load(original: Any) -> Any:
    @wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        from phoonnx_llasa.host.catalogue import is_llasa

        if not is_llasa(self):
            return original(self, *args, **kwargs)
        from phoonnx_llasa.host.voice import LlasaVoice

        providers = args[0] if args else kwargs.get("providers")
        return LlasaVoice.from_entry(self, providers=providers)

    return load


def _artifact_urls(original: Any) -> Any:
    # The host adds a graph's weights by the graph's name, and Llasa's entries name them as well.
    @wraps(original)
    def artifact_urls(self: Any) -> list[str]:
        urls: list[str] = original(self)
        if self.engine != "llasa":
            return urls
        sidecar = import_module("phoonnx.model_manager")._sidecar_url
        weights = {sidecar(url) for url in urls}
        return [url for url in urls if url not in weights]

    return artifact_urls


def _voice_index_files(original: Any) -> Any:
    @wraps(original.__func__)
    def voice_index_files(cls: Any) -> list[Path]:
        from phoonnx_llasa.host.catalogue import INDEX_FILE

        files: list[Path] = original.__func__(cls)
        return files if INDEX_FILE in files else [*files, INDEX_FILE]

    return classmethod(voice_index_files)


def _load_voice(original: Any) -> Any:
    # The catalogue is imported by the calls: importing it may be what has brought us here.
    if original is not None:

        @wraps(original)
        def load_any(self: Any, voice_id: str, *args: Any, **kwargs: Any) -> Any:
            from phoonnx_llasa.host.catalogue import find_voice, our_entries

            if voice_id not in our_entries():
                return original(self, voice_id, *args, **kwargs)
            return find_voice(self, voice_id).load(*args, **kwargs)

        return load_any

    def load_voice(self: Any, voice_id: str, providers: Any = None) -> Any:
        """Load any voice by its id.

        It is looked up in this manager's registry, in the bundled indexes, and in the cache on
        disk; the registry is not changed.

        Args:
            voice_id: as ``phoonnx-voices list-available`` shows it.
            providers: as in ``TTSModelInfo.load``.

        Raises:
            UnknownVoiceError: nobody knows the id; it names the ones that are close.
        """
        from phoonnx_llasa.host.catalogue import find_voice

        return find_voice(self, voice_id).load(providers=providers)

    return load_voice


def _resolve(original: Any) -> Any:
    @wraps(original)
    def resolve(url: Any, *args: Any, **kwargs: Any) -> Any:
        from phoonnx_llasa.host.catalogue import SCHEME, package_file

        if not str(url).startswith(SCHEME):
            return original(url, *args, **kwargs)
        return package_file(url)

    return resolve


def _cached_path(original: Any) -> Any:
    @wraps(original)
    def cached_path(url: Any) -> Any:
        from huggingface_hub.errors import LocalEntryNotFoundError

        from phoonnx_llasa.errors import BundleError
        from phoonnx_llasa.host.catalogue import SCHEME, package_file

        if not str(url).startswith(SCHEME):
            return original(url)
        try:
            return package_file(url)
        except (BundleError, LocalEntryNotFoundError):
            return None

    return cached_path
