"""A Hugging Face checkpoint folder as tensors that are read one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open


class CheckpointError(Exception):
    """A checkpoint folder lacks something that the conversion needs."""


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of a folder with `*.safetensors` (one file or shards) or `pytorch_model*.bin`.

    A tensor of a safetensors file is read when it is asked for and not kept, so walking over a
    checkpoint costs the memory of its largest tensor. `.bin` files are mapped, not read.
    Raises CheckpointError when the folder has no weights.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}
        self._loaded: dict[str, torch.Tensor] = {}
        for path in _weight_files(folder):
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))
        if not self._files:
            for path in sorted(folder.glob("*.bin")):
                self._loaded.update(
                    torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                )
        if not self._files and not self._loaded:
            raise CheckpointError(f"{folder}: no *.safetensors and no *.bin with weights")

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._loaded:
            return self._loaded[name]
        with safe_open(self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files or self._loaded)

    def __len__(self) -> int:
        return len(self._files or self._loaded)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers would read; any there are when it would read none."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder}: no {', '.join(missing)}, which {index.name} names")
        return [folder / name for name in names]
    return sorted(folder.glob("*.safetensors"))


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object; raises CheckpointError naming the file when that is not what it is."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds {type(value).__name__}, not a JSON object")
    return value
