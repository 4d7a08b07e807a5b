"""A rewritten graph is held against the published one, once."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from graph_models import Published

from phoonnx_llasa.compact_decoder import load_compact
from phoonnx_llasa.errors import GraphError
from phoonnx_llasa.graph import rewriting
from phoonnx_llasa.graph.compact import compact_graph
from phoonnx_llasa.graph.dataflow import GraphMismatchError
from phoonnx_llasa.graph.llama import LlamaGraph, read_llama
from phoonnx_llasa.graph.proof import (
    Proof,
    proof_key,
    prove,
    read_proof,
    require_proof,
    trial_tokens,
    write_proof,
)
from phoonnx_llasa.graph.rewriting import open_proven

ROWS = (535, 791)


@pytest.fixture
def path(small_graphs: Path, tmp_path: Path) -> Path:
    """A model of the test's own."""
    shutil.copytree(small_graphs / "deduped", tmp_path / "model")
    return tmp_path / "model" / "model.onnx"


@pytest.fixture
def llama(path: Path) -> LlamaGraph:
    return read_llama(path, max_positions=200)


def decoder(llama: LlamaGraph, **changes):
    compact = compact_graph(dataclasses.replace(llama, **changes), rows=ROWS)
    return load_compact(compact.model, compact.data_folder, threads=1).decoder()


class Counted:
    """Opens a decoder and counts how often that was asked for."""

    def __init__(self, make) -> None:
        self.make, self.count = make, 0

    def __call__(self):
        self.count += 1
        return self.make()


def test_the_same_model_passes(path: Path, llama: LlamaGraph) -> None:
    proof = prove(Published(path), decoder(llama))
    assert (proof.passed, proof.reason) == (True, "")
    assert proof.figures["steps"] == 8
    assert 0 < proof.figures["relative"] < 1e-5
    assert proof.figures["greedy_agreement"] == 1


def test_the_trial_reaches_many_rows_and_stays_in_the_vocabulary(llama: LlamaGraph) -> None:
    prompt, path = trial_tokens(decoder(llama))
    assert (len(prompt), len(path)) == (32, 8)
    assert ROWS[0] <= min(prompt + path) <= max(prompt + path) <= ROWS[1]
    assert trial_tokens(decoder(llama)) == (prompt, path)


def test_small_faults_do_not_pass(path: Path, llama: LlamaGraph) -> None:
    angle = np.ones_like(llama.rope_cos)
    first, second = llama.layers
    swapped = dataclasses.replace(first, gate=first.up, up=first.gate)
    faults = [
        {"norm_epsilon": 1e-3},
        {
            "rope_cos": np.cos(0.001 * angle) * llama.rope_cos
            - np.sin(0.001 * angle) * llama.rope_sin
        },
        {"layers": (second, first)},
        {"layers": (swapped, second)},
    ]
    for fault in faults:
        proof = prove(Published(path), decoder(llama, **fault))
        assert not proof.passed
        assert proof.reason.startswith("relative is ")


def test_a_proof_is_made_once(path: Path, llama: LlamaGraph, tmp_path: Path) -> None:
    reference, candidate = Counted(lambda: Published(path)), Counted(lambda: decoder(llama))
    folder = tmp_path / "made" / "for it"

    def require(**options) -> Proof:
        return require_proof(reference, candidate, **({"key": "a", "folder": folder} | options))

    first = require()
    assert (reference.count, candidate.count) == (1, 1)
    assert require() == first
    assert (reference.count, candidate.count) == (1, 1)
    assert require(key="b") == first
    assert reference.count == 2
    assert require(mode="force") == first
    assert reference.count == 3
    assert require(mode="off", key="c") == Proof(True, "", {})
    assert reference.count == 3
    assert require(folder=None) == first
    assert reference.count == 4
    assert len(list(folder.iterdir())) == 2


def test_a_failed_proof_is_kept_as_well(tmp_path: Path) -> None:
    failed = Proof(False, "relative is 0.5, allowed is at most 0.0002", {"relative": 0.5})
    write_proof(tmp_path, "k" * 64, failed)
    assert read_proof(tmp_path, "k" * 64) == failed
    assert read_proof(tmp_path, "l" * 64) is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"passed": true}', '{"passed": 1, "reason": ""}']
)
def test_a_broken_record_is_made_again(
    path: Path, llama: LlamaGraph, tmp_path: Path, content: str
) -> None:
    reference = Counted(lambda: Published(path))
    options = {"key": "a", "folder": tmp_path / "proofs"}
    require_proof(reference, lambda: decoder(llama), **options)
    (record,) = options["folder"].iterdir()
    record.write_text(content)
    assert require_proof(reference, lambda: decoder(llama), **options).passed
    assert reference.count == 2
    assert json.loads(record.read_text())["passed"] is True


def test_a_folder_that_cannot_be_written_costs_time_only(
    path: Path, llama: LlamaGraph, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "proofs"
    proof = require_proof(lambda: Published(path), lambda: decoder(llama), key="a", folder=folder)
    assert proof.passed
    assert "cannot keep the proof" in caplog.text


def test_the_key_is_about_content(path: Path) -> None:
    sidecar = path.with_name("model.onnx_data")
    key = proof_key(path, [sidecar], rows=ROWS)
    assert key == proof_key(path, [sidecar], rows=ROWS)
    assert key != proof_key(path, [sidecar], rows=None)
    os.utime(sidecar, ns=(1, 1))
    touched = proof_key(path, [sidecar], rows=ROWS)
    assert touched != key
    path.write_bytes(path.read_bytes() + b"\0")
    assert proof_key(path, [sidecar], rows=ROWS) != touched
    with pytest.raises(OSError, match="missing"):
        proof_key(path, [path.with_name("missing")])


def test_the_key_of_a_hub_file_is_its_blobs_name(path: Path, tmp_path: Path) -> None:
    sidecar = path.with_name("model.onnx_data")
    blob = tmp_path / ("0" * 40)
    shutil.move(sidecar, blob)
    sidecar.symlink_to(blob)
    key = proof_key(path, [sidecar])
    os.utime(blob, ns=(1, 1))
    assert proof_key(path, [sidecar]) == key
    other = tmp_path / ("1" * 40)
    shutil.move(blob, other)
    sidecar.unlink()
    sidecar.symlink_to(other)
    assert proof_key(path, [sidecar]) != key


def test_opening_proves_once_and_then_believes(path: Path, tmp_path: Path) -> None:
    reference = Counted(lambda: Published(path))
    options = {"context_length": 200, "rows": ROWS, "proofs": tmp_path / "proofs", "threads": 1}
    for expected in (1, 1):
        model = open_proven(path, reference, **options)
        assert reference.count == expected
    assert model.decoder().feed([1, 2]).shape == (257,)
    open_proven(path, reference, **(options | {"rows": None}))
    assert reference.count == 2


def test_opening_refuses_what_computes_something_else(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slightly_off(*args, **options) -> LlamaGraph:
        return dataclasses.replace(read_llama(*args, **options), norm_epsilon=1e-3)

    monkeypatch.setattr(rewriting, "read_llama", slightly_off)
    reference = Counted(lambda: Published(path))
    for _ in range(2):  # the second time from the record
        with pytest.raises(GraphMismatchError, match="relative is") as caught:
            open_proven(path, reference, context_length=200, rows=ROWS, proofs=tmp_path)
        assert caught.value.place == "compact graph"
    assert reference.count == 1
    open_proven(path, reference, context_length=200, rows=ROWS, proofs=tmp_path, proof="off")


def test_opening_a_cut_sidecar_fails_with_the_files_name(path: Path) -> None:
    sidecar = path.with_name("model.onnx_data")
    with sidecar.open("r+b") as file:
        file.truncate(sidecar.stat().st_size // 2)
    with pytest.raises(GraphError, match="model"):
        open_proven(path, lambda: Published(path), context_length=200, proof="off")


def test_a_kept_proof_is_not_valid_for_another_onnxruntime(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = proof_key(path, [])
    monkeypatch.setattr(onnxruntime, "__version__", "0.0.0")
    assert proof_key(path, []) != key
