"""The exported language model against transformers on the same checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray

from scripts.conversion.llasa.checkpoint import CheckpointError
from scripts.conversion.llasa.export_llm import export_llm

TEXTS = {
    "en": "Dealing with family secrets is never easy.",
    "zh": "今天的天气很好，我们一起去公园散步吧。",
}


class Graph:
    """The contract's inputs and outputs over one session."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(path))
        self.inputs = {spec.name: spec for spec in self.session.get_inputs()}
        self.outputs = {spec.name: spec for spec in self.session.get_outputs()}
        self.past_names = [name for name in self.inputs if name.startswith("past_key_values.")]

    def empty_past(self, batch: int = 1) -> list[NDArray[np.float32]]:
        shapes = [self.inputs[name].shape for name in self.past_names]
        return [np.zeros((batch, heads, 0, dim), np.float32) for _, heads, _, dim in shapes]

    def feed(
        self,
        ids: NDArray[np.int64],
        past: Sequence[NDArray[np.float32]],
        mask: NDArray[np.int64] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
        batch, new = ids.shape
        length = past[0].shape[2]
        if mask is None:
            mask = np.ones((batch, length + new), np.int64)
        if positions is None:
            positions = np.tile(np.arange(length, length + new), (batch, 1))
        feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        logits, *present = self.session.run(
            None, feeds | dict(zip(self.past_names, past, strict=True))
        )
        return logits, present


@pytest.fixture(scope="module")
def llama(small_checkpoints: Path):
    return transformers.LlamaForCausalLM.from_pretrained(
        small_checkpoints / "llm", dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def graph(small_graphs: Path) -> Graph:
    return Graph(small_graphs / "separate" / "model.onnx")


@pytest.fixture(scope="module")
def encode(small_checkpoints: Path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(small_checkpoints / "llm" / "tokenizer.json"))
    return lambda text: np.array([tokenizer.encode(text).ids], np.int64)


def native_logits(llama, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        return llama(torch.from_numpy(ids)).logits.numpy()


def test_the_signature_is_the_contract(graph: Graph) -> None:
    assert list(graph.inputs)[:3] == ["input_ids", "attention_mask", "position_ids"]
    assert graph.past_names == [
        f"past_key_values.{layer}.{side}" for layer in range(2) for side in ("key", "value")
    ]
    assert list(graph.outputs) == [
        "logits",
        *(f"present.{layer}.{side}" for layer in range(2) for side in ("key", "value")),
    ]
    types = {name: spec.type for name, spec in (graph.inputs | graph.outputs).items()}
    assert {types.pop(name) for name in list(graph.inputs)[:3]} == {"tensor(int64)"}
    assert set(types.values()) == {"tensor(float)"}
    assert graph.inputs["past_key_values.0.key"].shape == ["batch", 2, "past_length", 16]
    assert graph.inputs["input_ids"].shape == ["batch", "sequence"]
    assert graph.outputs["logits"].shape == ["batch", 1, 792]
    assert graph.outputs["present.1.value"].shape == ["batch", 2, "total_length", 16]


@pytest.mark.parametrize("language", TEXTS)
def test_prefill_and_48_greedy_steps_agree_with_torch(language, graph, llama, encode) -> None:
    ids = encode(TEXTS[language])
    prompt_length = ids.shape[1]
    logits, past = graph.feed(ids, graph.empty_past())
    rows = [logits[0, 0]]
    for _ in range(48):
        token = np.array([[int(rows[-1].argmax())]])
        ids = np.append(ids, token, axis=1)
        logits, past = graph.feed(token, past)
        rows.append(logits[0, 0])
    expected = native_logits(llama, ids)[0, prompt_length - 1 :]
    assert np.abs(np.stack(rows) - expected).max() <= 1e-4
    assert expected[:48].argmax(axis=1).tolist() == ids[0, prompt_length:].tolist()
    assert len(set(ids[0, prompt_length:].tolist())) > 10  # a stuck model would show nothing


def test_a_prompt_may_be_fed_in_parts(graph: Graph, encode) -> None:
    ids = encode(TEXTS["en"])
    whole, whole_past = graph.feed(ids, graph.empty_past())
    _, past = graph.feed(ids[:, :5], graph.empty_past())
    parts, past = graph.feed(ids[:, 5:], past)
    assert np.abs(parts - whole).max() <= 1e-5
    for one, other in zip(past, whole_past, strict=True):
        assert np.abs(one - other).max() <= 1e-5


def test_a_batch_of_two_is_two_sequences(graph: Graph, encode) -> None:
    first, second = encode(TEXTS["en"]), encode("Good evening to all of you and to nobody else.")
    length = min(first.shape[1], second.shape[1])
    pair = np.concatenate([first[:, :length], second[:, :length]])
    logits, past = graph.feed(pair, graph.empty_past(2))
    steps = np.array([[17], [400]])
    after, _ = graph.feed(steps, past)
    for row in range(2):
        alone, alone_past = graph.feed(pair[row : row + 1], graph.empty_past())
        assert np.abs(logits[row] - alone[0]).max() <= 1e-5
        alone, _ = graph.feed(steps[row : row + 1], alone_past)
        assert np.abs(after[row] - alone[0]).max() <= 1e-5


def test_padding_on_the_left_is_without_effect(graph: Graph, llama, encode) -> None:
    ids = encode(TEXTS["en"])
    padding = 3
    padded = np.concatenate([np.zeros((1, padding), np.int64), ids], axis=1)
    mask = (np.arange(padded.shape[1]) >= padding).astype(np.int64)[None]
    positions = np.maximum(np.arange(padded.shape[1]) - padding, 0)[None]
    logits, _ = graph.feed(padded, graph.empty_past(), mask, positions)
    assert np.abs(logits - native_logits(llama, ids)[:, -1:]).max() <= 1e-4


def test_weights_lie_beside_the_graph_on_page_boundaries(small_graphs: Path) -> None:
    path = small_graphs / "separate" / "model.onnx"
    sidecar = path.with_name("model.onnx_data")
    model = onnx.load(path, load_external_data=False)
    end = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        assert entry["location"] == sidecar.name
        assert int(entry["offset"]) % 4096 == 0
        assert int(entry["offset"]) >= end
        assert int(entry["length"]) == 4 * np.prod(tensor.dims)
        end = int(entry["offset"]) + int(entry["length"])
    assert end == sidecar.stat().st_size


def test_weights_go_into_the_graph_when_asked(
    small_checkpoints: Path, tmp_path: Path, graph
) -> None:
    path = tmp_path / "model.onnx"
    export_llm(small_checkpoints / "llm", path, external=False)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    ids = np.arange(5)[None]
    assert np.array_equal(
        Graph(path).feed(ids, graph.empty_past())[0], graph.feed(ids, graph.empty_past())[0]
    )


def test_an_untied_half_precision_checkpoint_in_shards(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,  # not hidden_size / heads: the 3B sibling's kind of geometry
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        llama = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        for bias in (p for name, p in llama.named_parameters() if name.endswith("bias")):
            torch.nn.init.normal_(bias)
    llama.save_pretrained(tmp_path / "checkpoint", max_shard_size="20KB")
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) > 1
    export_llm(tmp_path / "checkpoint", tmp_path / "model.onnx")
    graph = Graph(tmp_path / "model.onnx")
    ids = np.arange(20, 40)[None]
    logits, _ = graph.feed(ids, graph.empty_past())
    assert np.abs(logits - native_logits(llama.float().eval(), ids)[:, -1:]).max() <= 1e-4


def test_a_checkpoint_of_another_architecture_is_refused(small_checkpoints, tmp_path) -> None:
    with pytest.raises(CheckpointError, match="model_type is 'xcodec2', expected 'llama'"):
        export_llm(small_checkpoints / "xcodec2", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_weight_is_named_and_nothing_is_written(small_checkpoints, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    folder, output = tmp_path / "checkpoint", tmp_path / "out"
    folder.mkdir()
    output.mkdir()
    source = small_checkpoints / "llm"
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = load_file(source / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        export_llm(folder, output / "model.onnx")
    assert list(output.iterdir()) == []
