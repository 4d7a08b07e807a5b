"""Which files of a checkpoint folder are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from scripts.conversion.llasa.checkpoint import Checkpoint, CheckpointError, read_json


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    for number in (1, 2):
        save_file(
            {f"w{number}": torch.full((2,), float(number))}, tmp_path / f"{number}.safetensors"
        )
    save_file({"stray": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"w1": "1.safetensors", "w2": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = Checkpoint(tmp_path)
    assert sorted(checkpoint) == ["w1", "w2"]
    assert checkpoint["w2"].tolist() == [2.0, 2.0]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"w1": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"no 1\.safetensors, which .*index\.json names"):
        Checkpoint(tmp_path)


def test_the_older_file_format_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3)}, tmp_path / "pytorch_model.bin")
    checkpoint = Checkpoint(tmp_path)
    assert (len(checkpoint), checkpoint["w"].tolist()) == (1, [0, 1, 2])


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no .* with weights"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(("text", "problem"), [("{", "cannot be read"), ("[]", "holds list")])
def test_broken_json_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=rf"config\.json: {problem}"):
        read_json(path)
