"""`phoonnx-llasa voices`: what can speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from phoonnx_llasa.commands.common import (
    find_bundle,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
)

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle


@click.command()
@click.option("--model", "-m", metavar="ID|FOLDER", help="List the presets of this model instead.")
@logging_options
def voices(model: str | None, quiet: bool, verbose: int) -> None:
    """List the voice ids, or the presets of one model.

    Nothing is downloaded.
    """
    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        rows = _catalogue_rows() if model is None else _preset_rows(find_bundle(model))
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
