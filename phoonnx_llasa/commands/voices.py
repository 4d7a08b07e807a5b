"""`phoonnx-llasa voices`: what can speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from phoonnx_llasa.commands.common import (
    echo_json,
    find_bundle,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
    tell,
)
from phoonnx_llasa.commands.completion import complete_model

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle
    from phoonnx_llasa.host.catalogue import Listing
    from phoonnx_llasa.presets import Preset

_UNKNOWN: Final = "not known yet"


@click.command()
@click.option(
    "--model",
    "-m",
    metavar="ID|FOLDER",
    shell_complete=complete_model,
    help="List the presets of this model instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@logging_options
def voices(model: str | None, as_json: bool, quiet: bool, verbose: int) -> None:
    """List the voice ids, or the presets of one model with those you made.

    Nothing is downloaded. The size is what lies on the disk, or what a download would fetch;
    voices of one model share their files.

    \b
    phoonnx-llasa voices
    phoonnx-llasa voices --model llasa/demo/en/tiny
    phoonnx-llasa voices --json
    """
    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        if model is None:
            found = _catalogue()
            rows, entries = _catalogue_rows(found), {"voices": list(map(_catalogue_entry, found))}
            problems = [f"{each.voice_id}: {each.problem}" for each in found if each.problem]
        else:
            rows, entries, problems = _presets(model, find_bundle(model))
    for problem in problems:
        tell(f"warning: {problem}")
    if as_json:
        echo_json(entries)
    else:
        click.echo(_table(rows))


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def _catalogue() -> list[Listing]:
    from phoonnx_llasa.host.catalogue import list_voices

    return list_voices()


def _catalogue_rows(found: Sequence[Listing]) -> list[Sequence[str]]:
    return [
        ("ID", "LANGUAGE", "STATE", "SIZE", "LICENCE"),
        *((v.voice_id, v.lang, _state(v), _size(v.size), v.license or _UNKNOWN) for v in found),
    ]


def _state(voice: Listing) -> str:
    if voice.built_in:
        return "built in"
    if voice.problem:
        return "broken"
    return "downloaded" if voice.downloaded else "not downloaded"


def _size(count: int | None) -> str:
    from phoonnx_llasa.host.downloads import human_bytes

    return _UNKNOWN if count is None else human_bytes(count)


def _catalogue_entry(voice: Listing) -> dict[str, Any]:
    return {
        "id": voice.voice_id,
        "language": voice.lang,
        "name": voice.display_name,
        "licence": voice.license,
        "state": _state(voice),
        "downloaded": voice.downloaded,
        "size_bytes": voice.size,
        "problem": voice.problem or None,
    }


def _presets(model: str, bundle: Bundle) -> tuple[list[Sequence[str]], dict[str, Any], list[str]]:
    """Rows for people, an object for programs, and what is wrong with presets left out."""
    from phoonnx_llasa.prompt import SpeechTokenizer
    from phoonnx_llasa.user_voices import bundle_voices

    tokenizer = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
    found = bundle_voices(bundle, num_codes=tokenizer.num_codes).now()
    rows: list[Sequence[str]] = [("PRESET", "LANGUAGE", "SECONDS", "SEED", "MADE BY", "SAYS")]
    entries = []
    for name, preset in found.presets.items():
        own, is_default = name in found.own, name == found.default_voice
        seconds = len(preset.codes) * bundle.config.hop_length / bundle.config.sample_rate
        rows.append(
            (
                name + (" (default)" if is_default else ""),
                preset.lang,
                f"{seconds:.1f}",
                "" if preset.seed is None else str(preset.seed),
                _maker(preset, own=own),
                " ".join(filter(str.isprintable, preset.text.split())),
            )
        )
        entries.append(
            {
                "name": name,
                "language": preset.lang,
                "seconds": seconds,
                "seed": preset.seed,
                "synthetic": preset.synthetic,
                "own": own,
                "default": is_default,
                "text": preset.text,
            }
        )
    return rows, {"model": model, "presets": entries}, [str(e) for e in found.broken.values()]


def _maker(preset: Preset, *, own: bool) -> str:
    return ("you" if own else "the model") + ("" if preset.synthetic else ", from a recording")
