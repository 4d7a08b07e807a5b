"""Bundles to measure on: random weights, built once, kept outside of the repository.

    python -m benchmarks.bundles FOLDER [--size true]

At true size this needs torch, 6 GB of memory, 20 GB of disk on the way and 6 GB in the end, and
takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.presets import Preset, Voices, write_voices
from phoonnx_llasa.prompt import SpeechTokenizer

REPOSITORY: Final = Path(__file__).parents[1]
SIZES: Final = ("true", "medium", "tiny")
PRESET: Final = "random"
#: What the preset would say if its codes were speech: about 5 s.
_TRANSCRIPT: Final = (
    "The rain had stopped before the morning came, and the streets were empty again."
)


class BuildError(Exception):
    """A step on the way to a bundle ended with an error."""

    def __init__(self, step: str) -> None:
        super().__init__(f"{step} failed; its own message is above")


def default_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where bundles are kept, in the user's cache folder."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "phoonnx_llasa" / "bench"


def random_bundle(cache: Path, size: str, say: Callable[[str], None]) -> Path:
    """The bundle of a size, built if it is not there yet.

    Each step is a process of its own, so that nothing of torch stays in this one.

    Raises:
        BuildError: a step went wrong.
    """
    folder = cache / size
    if not folder.is_dir():
        say(f"building {folder} out of random weights, once")
        cache.mkdir(parents=True, exist_ok=True)
        build_bundle(folder, size, say)
    return folder


def build_bundle(folder: Path, size: str, say: Callable[[str], None]) -> None:
    """Random checkpoints -> graphs -> bundle, with the scripts that convert the real ones.

    Raises:
        BuildError: a step went wrong.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build.") as name:
        work = Path(name)
        checkpoints = work / "checkpoints"
        codec, separate, deduped = (
            work / "xcodec2_decoder.onnx",
            work / "separate" / "model.onnx",
            work / "deduped" / "model.onnx",
        )
        convert = "scripts.conversion.llasa."

        def run(module: str, *arguments: object) -> None:
            say(module.rpartition(".")[2])
            command = [sys.executable, "-m", module, *map(str, arguments)]
            # stdout is for the results
            if subprocess.run(command, cwd=REPOSITORY, stdout=sys.stderr, check=False).returncode:
                raise BuildError(module)

        run("benchmarks.bundles", checkpoints, "--size", size, "--checkpoints-only")
        run(f"{convert}export_xcodec2", checkpoints / "xcodec2", codec)
        run(f"{convert}export_llm", checkpoints / "llm", separate, "--external")
        (checkpoints / "llm" / "model.safetensors").unlink()
        run(f"{convert}dedupe_embedding", separate, deduped)
        shutil.rmtree(separate.parent)
        tokenizer = checkpoints / "llm" / "tokenizer.json"
        parts = ("--model", deduped, "--codec", codec, "--tokenizer", tokenizer)
        run(f"{convert}make_bundle", folder, *parts, "--source", "random weights")


def with_preset(bundle: Path, folder: Path, num_codes: int) -> Path:
    """A bundle's files, linked, with one preset of random codes as its voices.

    Args:
        bundle: the files.
        folder: where to put the links; replaced if it is there.
        num_codes: length of the preset.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in bundle.iterdir():
        if path.is_file() and path.name != "voices.json":
            _link(path, folder / path.name)
    opened = open_bundle(folder)
    available = SpeechTokenizer(opened.tokenizer, opened.config.num_codes).num_codes
    codes = np.random.default_rng(0).integers(0, available, num_codes)
    preset = Preset(PRESET, _TRANSCRIPT, "en", tuple(map(int, codes)))
    write_voices(folder / "voices.json", Voices({PRESET: preset}, PRESET), note="random codes")
    return folder


#: onnx refuses weights in a file with two names, and small copies cost nothing.
_LINKED_FROM: Final = 256 << 20


def _link(source: Path, target: Path) -> None:
    """A hard link of a large file, which onnxruntime takes for one of the folder; else a copy."""
    try:
        if source.stat().st_size < _LINKED_FROM:
            raise OSError
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _write_checkpoints(folder: Path, size: str) -> None:
    import torch

    from scripts.conversion.llasa import random_checkpoints as random

    sizes = dict(random.SIZES)
    # Large enough that reading weights takes the time, small enough to build in a minute.
    sizes["medium"] = random.Size(
        text_tokens=8_192,
        llama_tokens=256,
        hidden_size=512,
        intermediate_size=2048,
        num_layers=8,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        codec_hidden_size=256,
        codec_layers=4,
        codec_heads=4,
        levels=(4,) * 6,
        dtype=torch.float32,
    )
    random.write_llm(folder / "llm", sizes[size])
    random.write_codec(folder / "xcodec2", sizes[size])


def main(arguments: list[str] | None = None) -> None:
    """Build one bundle."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="the bundle to write")
    parser.add_argument("--size", choices=SIZES, default="true")
    parser.add_argument("--checkpoints-only", action="store_true", help="what it would be made of")
    given = parser.parse_args(arguments)
    if given.checkpoints_only:
        _write_checkpoints(given.folder, given.size)
        return
    given.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        build_bundle(given.folder, given.size, lambda line: print(line, file=sys.stderr))
    except BuildError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
