"""`phoonnx-llasa say`: text to sound files, standard output or a player."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from phoonnx_llasa.commands.common import (
    BUILT_IN,
    STANDARD_STREAM,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
    tell,
)
from phoonnx_llasa.commands.completion import complete_model, complete_voice
from phoonnx_llasa.commands.requests import (
    Request,
    Source,
    read_json_lines,
    read_lines,
    read_whole,
    read_words,
)
from phoonnx_llasa.commands.sinks import check_destination, find_player_command
from phoonnx_llasa.commands.speaking import Plan, carry_out
from phoonnx_llasa.errors import InputError

_DEFAULT_OUTPUT: Final = "speech.wav"


def _sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """What goes to the model as it is; the names are those of extra_params."""
    options = (
        click.option(
            "--voice",
            shell_complete=complete_voice,
            help="Preset of the model; 'none' invents a speaker.",
        ),
        click.option("--seed", type=int, help="Same seed, same text, same voice: the same sound."),
        click.option("--temperature", type=float, help="Higher varies more; 0 is the likeliest."),
        click.option(
            "--top-p", type=float, help="Sample from the likeliest that make up this share."
        ),
        click.option("--top-k", type=int, help="Sample from this many of the likeliest."),
        click.option(
            "--min-p", type=float, help="Drop what is less likely than this share of the best."
        ),
        click.option("--repetition-penalty", type=float, help="Above 1 makes repeats less likely."),
        click.option("--max-new-tokens", type=int, help="Most codes per piece; 50 are a second."),
        click.option("--max-chunk-chars", type=int, help="Characters spoken in one piece."),
        click.option("--sentence-silence", type=float, help="Seconds of silence between pieces."),
        click.option(
            "--first-block-codes", type=int, help="Codes in the first block: less is heard sooner."
        ),
        click.option("--block-codes", type=int, help="Codes in later blocks."),
        click.option("--lookback-codes", type=int, help="Codes decoded again before each block."),
        click.option("--lookahead-codes", type=int, help="Codes waited for after each block."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("words", nargs=-1, metavar="[TEXT]")
@click.option(
    "--input-file",
    "-i",
    "input_files",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    multiple=True,
    help="Speak a text file (UTF-8); may be given several times; - is standard input.",
)
@click.option("--lines", is_flag=True, help="Each line is a text of its own.")
@click.option("--whole", is_flag=True, help="Read a text to its end before any of it is spoken.")
@click.option(
    "--json-lines", is_flag=True, help='Each line is an object: {"text": "Hello.", "seed": 7}.'
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    help=f"The file to write; - is standard output.  [default: {_DEFAULT_OUTPUT}]",
)
@click.option(
    "--output-dir",
    "-d",
    type=click.Path(file_okay=False),
    help="Write one file per input file, or per line of standard input, into this folder.",
)
@click.option("--force", is_flag=True, help="Let --output-dir replace files.")
@click.option("--play", "-p", is_flag=True, help="Play the sound; no file without -o or -d.")
@click.option(
    "--player",
    metavar="COMMAND",
    help="Play with this program; {rate} in it stands for the rate of bare samples.",
)
@click.option("--raw", is_flag=True, help="No WAV header: signed 16-bit little-endian samples.")
@click.option(
    "--speed",
    type=float,
    default=1.0,
    help="0.5 to 2 times as fast, at the same pitch (PyAV does it: the extra `speed`).",
)
@click.option(
    "--model",
    "-m",
    metavar="ID|FOLDER",
    default=BUILT_IN,
    envvar="PHOONNX_LLASA_MODEL",
    show_default=True,
    show_envvar=True,
    shell_complete=complete_model,
    help="A voice id as `phoonnx-llasa voices` lists them (downloaded when needed), or a folder.",
)
@_sampling_options
@click.option(
    "--no-stream", is_flag=True, help="Decode each piece in one go: later, a little smoother."
)
@click.option("--stats", is_flag=True, help="Tell speed and length on standard error.")
@click.option("--stats-json", is_flag=True, help="The same as one line of JSON per sound.")
@logging_options
def say(words: tuple[str, ...], quiet: bool, verbose: int, **given: Any) -> None:
    """Speak TEXT, or standard input where TEXT is absent or "-".

    Sound is made in blocks, and each is handed on at once. What comes through a pipe is spoken as
    it comes: lines that come together are one text, so that wrapped lines make no pauses. --lines
    makes each line a text of its own, --whole waits for the end.

    --output-dir names files after the input files, or after a text's first words. A name that is
    there already gets a number, or with --force its file is replaced.

    A line of --json-lines has "text", and may have "output" (a file name in the folder) and extra
    parameters: "voice", "seed", "temperature" and so on. One that cannot be spoken is reported
    with its number, the others are spoken, and the exit code is 1. So it is with --lines and
    --output-dir.

    \b
    phoonnx-llasa say "Good morning."
    phoonnx-llasa say -o story.wav --sentence-silence 0.3 < story.txt
    phoonnx-llasa say -o - "Straight to the player." | aplay
    tail -f messages.log | phoonnx-llasa say --lines --play
    phoonnx-llasa say -d chapters -i one.txt -i two.txt
    phoonnx-llasa say -d prompts --json-lines < prompts.jsonl
    """
    plan = _plan(given, quiet=quiet)
    requests = _requests(words, given, plan, quiet=quiet)
    stdout = sys.stdout.buffer if plan.output == STANDARD_STREAM else None
    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        failures = carry_out(plan, requests, stdout)
    if failures:
        raise click.exceptions.Exit(1)


def _plan(given: Mapping[str, Any], *, quiet: bool) -> Plan:
    """What was asked for, checked before anything is loaded or downloaded.

    Raises:
        click.UsageError: options that go against each other, or a wrong destination.
        LlasaError: a value out of range, or something that is not installed.
    """
    from phoonnx_llasa.options import PARAMETERS, parse_options
    from phoonnx_llasa.tempo import check_speed

    output, folder = given["output"], given["output_dir"]
    play = given["play"] or given["player"] is not None
    if output is not None and folder is not None:
        raise click.UsageError("--output makes one file, --output-dir many; give one of them")
    if output is None and folder is None and not play:
        if given["json_lines"]:
            folder = "."
        else:
            output = _DEFAULT_OUTPUT
    if output is not None:
        check_destination(output)
    params = {name: given[name] for name in PARAMETERS if given.get(name) is not None}
    if given["no_stream"]:
        params["stream"] = False
    parse_options(params)
    if given["speed"] != 1:
        check_speed(given["speed"])
    return Plan(
        model=given["model"],
        params=params,
        output=output,
        folder=None if folder is None else Path(folder),
        force=given["force"],
        player=find_player_command(given["player"]) if play else None,
        raw=given["raw"],
        speed=given["speed"],
        goes_on=folder is not None or given["lines"] or given["json_lines"],
        stats=given["stats"],
        stats_json=given["stats_json"],
        quiet=quiet,
    )


def _requests(
    words: tuple[str, ...], given: Mapping[str, Any], plan: Plan, *, quiet: bool
) -> Iterator[Request | InputError]:
    """Where the text is, found out before anything is loaded; it is read when its turn comes.

    Raises:
        click.UsageError: there is no text, or more than one kind of it.
    """
    reading = [name for name in ("lines", "whole", "json_lines") if given[name]]
    if len(reading) > 1:
        raise click.UsageError("--lines, --whole and --json-lines go against each other")
    paths = given["input_files"]
    if words and (paths or words != (STANDARD_STREAM,)):
        if paths or given["json_lines"]:
            raise click.UsageError("there is a text among the arguments, and one to be read")
        if any("\udc80" <= character <= "\udcff" for word in words for character in word):
            raise click.UsageError("the text is not UTF-8")  # these stand for single bytes
        return iter(read_words(words, by_line=given["lines"]))
    sources = [Source(path) for path in paths or (STANDARD_STREAM,)]
    if STANDARD_STREAM in (paths or (STANDARD_STREAM,)):
        if sys.stdin is None:
            raise click.UsageError("there is no text and no standard input to read it from")
        if sys.stdin.isatty() and not quiet:
            tell("Reading the text from the terminal; Ctrl-D ends it.")
    return _read(sources, given, plan)


def _read(
    sources: list[Source], given: Mapping[str, Any], plan: Plan
) -> Iterator[Request | InputError]:
    # a file for each line: of standard input nobody would want one file
    by_line = given["lines"] or (
        plan.folder is not None and not given["whole"] and sources == [Source(STANDARD_STREAM)]
    )
    if plan.folder is None and not (by_line or given["json_lines"]):
        yield read_whole(sources, wait=given["whole"])
        return
    for source in sources:
        if given["json_lines"]:
            yield from read_json_lines(source)
        elif by_line:
            yield from read_lines(source)
        else:
            yield read_whole([source], wait=given["whole"])
