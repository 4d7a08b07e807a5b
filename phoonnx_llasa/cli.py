"""phoonnx-llasa: text to sound from the command line.

Sound goes to a file or to standard output, everything else that is said to standard error.
Exit codes: 0 done, 1 it failed (one line says why), 2 the command was called wrongly, 130 Ctrl-C.
"""

from __future__ import annotations

import codecs
import io
import locale
import os
import signal
import sys
from types import FrameType
from typing import Any, Final, NoReturn

import click

from phoonnx_llasa._version import __version__
from phoonnx_llasa.commands.completion import completion
from phoonnx_llasa.commands.doctor import doctor
from phoonnx_llasa.commands.download import download, remove
from phoonnx_llasa.commands.new_voice import new_voice, remove_voice
from phoonnx_llasa.commands.say import say
from phoonnx_llasa.commands.voices import voices
from phoonnx_llasa.errors import LlasaError

_INTERRUPTED: Final = 128 + signal.SIGINT
_STDERR: Final = 2


class _Commands(click.Group):
    """Turns what can go wrong into one clear line and an exit code, for every command."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LlasaError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except click.Abort:  # at a question
            _exit_if_interrupted()
            raise
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
    _fill_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name in another script shall be no failure
        sys.stdout.reconfigure(errors="backslashreplace")
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


def _fill_standard_streams() -> None:
    """Give closed standard streams to nobody.

    Otherwise their numbers are those of the next files that are opened, a sound's among them, and
    there libraries would write their complaints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


#: Below the help of the command itself.
_EPILOG: Final = """
Sound goes to a file, a player or standard output, everything else to standard error. A file appears
when it is whole; where something fails, older files stay as they were.

\b
Exit codes:
  0    done
  1    failed, and a line says why; of many texts, some could not be spoken
  2    called wrongly
  130  stopped by Ctrl-C (143: by SIGTERM, 129: by a terminal that was closed)

\b
Environment:
  PHOONNX_LLASA_MODEL  the model, where --model is not given
  HF_HOME              where downloaded models are
  HF_HUB_OFFLINE=1     never ask the network
  XDG_DATA_HOME        where your own voices are
"""


@click.group(
    cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__)
def cli() -> None:
    """Speak text with Llasa models through phoonnx.

    \b
    phoonnx-llasa say "Hello there." -o hello.wav
    phoonnx-llasa say --play < story.txt
    phoonnx-llasa voices
    phoonnx-llasa doctor
    phoonnx-llasa say --help
    """


cli.add_command(say)
cli.add_command(voices)
cli.add_command(download)
cli.add_command(remove)
cli.add_command(new_voice)
cli.add_command(remove_voice)
cli.add_command(doctor)
cli.add_command(completion)
