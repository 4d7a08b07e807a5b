"""`phoonnx-llasa completion`, and what the shell is offered for --model and --voice.

Pressing Tab must not take seconds, so phoonnx is not loaded here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from phoonnx_llasa.commands.common import BUILT_IN, folder_of, is_folder
from phoonnx_llasa.errors import LlasaError

_COMMAND: Final = "phoonnx-llasa"
#: The variable that click looks for, by its rule for a command of this name.
_VARIABLE: Final = "_PHOONNX_LLASA_COMPLETE"

_PACKAGE: Final = Path(__file__).parents[1]
_HUB_URL: Final = re.compile(r"https://huggingface\.co/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete this command with Tab.

    \b
    phoonnx-llasa completion bash >> ~/.bashrc
    phoonnx-llasa completion zsh >> ~/.zshrc
    phoonnx-llasa completion fish > ~/.config/fish/completions/phoonnx-llasa.fish
    """
    complete = get_completion_class(shell)
    if complete is None:
        raise click.ClickException(f"click knows nothing of {shell}")
    root = click.get_current_context().find_root().command
    click.echo(complete(root, {}, _COMMAND, _VARIABLE).source())


def complete_model(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Voice ids of our index, or folders."""
    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="dir")]
    return _beginning_with(incomplete, _index())


def complete_voice(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The presets of the model that is named so far, as far as its files are here."""
    model = context.params.get("model") or os.environ.get("PHOONNX_LLASA_MODEL") or BUILT_IN
    return _beginning_with(incomplete, {*_preset_names(str(model)), "none"})


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _index() -> dict[str, dict[str, Any]]:
    from phoonnx_llasa.files import read_json

    index: dict[str, dict[str, Any]] = read_json(
        _PACKAGE / "host" / "voice_index" / "phoonnx_llasa.json"
    )
    return index


def _preset_names(model: str) -> Iterator[str]:
    """Whatever can be read; of the rest, whoever speaks with it will be told."""
    from phoonnx_llasa.user_voices import user_voices_file

    with suppress(LlasaError, OSError):
        voices, codec = _files(model)
        if voices is not None:
            yield from _names_in(voices)
        if codec is not None:
            yield from _names_in(user_voices_file(codec))


def _names_in(voices: Path) -> Iterator[str]:
    from phoonnx_llasa.files import read_json

    with suppress(LlasaError):
        data = read_json(voices)
        presets = data.get("presets") if isinstance(data, dict) else None
        # Others are no preset's; the terminal would do what control characters say.
        yield from filter(str.isprintable, presets if isinstance(presets, dict) else ())


def _files(model: str) -> tuple[Path | None, Path | None]:
    """voices.json and the codec's decoder of a folder or an id, where they are."""
    if is_folder(model):
        from phoonnx_llasa.bundle import open_bundle

        bundle = open_bundle(folder_of(model))
        return bundle.voices, bundle.codec
    entry = _index().get(model, {})
    urls = entry.get("aux_model_urls", {})
    beside = entry.get("model_url", "").rpartition("/")[0]
    voices = urls.get("voices_path", f"{beside}/voices.json")
    return _here(voices), _here(urls.get("codec_decoder_path", ""))


def _here(url: str) -> Path | None:
    if url.startswith("phoonnx-llasa:"):
        return _PACKAGE / url.removeprefix("phoonnx-llasa:")
    match = _HUB_URL.fullmatch(url)
    if match is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(match[1], match[3], revision=match[2])
    return Path(path) if isinstance(path, str) else None
