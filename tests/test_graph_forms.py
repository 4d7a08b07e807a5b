"""One LLaMA, exported in many ways: each is read by structure and gives the same logits anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import graph_models as models
import numpy as np
import onnx
import pytest
from graph_models import Published
from onnx import TensorProto, external_data_helper, numpy_helper

from phoonnx_llasa.compact_decoder import load_compact
from phoonnx_llasa.graph.compact import CompactGraph, compact_graph
from phoonnx_llasa.graph.compare import compare_along, greedy_path
from phoonnx_llasa.graph.llama import LlamaGraph, read_llama

CONTEXT = 700
ROWS = (100, 290)


def deduped(source: Path, folder: Path) -> Path:
    from scripts.conversion.llasa.dedupe_embedding import dedupe_embedding

    dedupe_embedding(source, folder / "model.onnx")
    return folder / "model.onnx"


def stored(source: Path, folder: Path, form) -> Path:
    from scripts.conversion.llasa.store_weights import store_weights

    store_weights(source, folder / "model.onnx", form)
    return folder / "model.onnx"


def inline(source: Path, folder: Path) -> Path:
    folder.mkdir()
    onnx.save_model(onnx.load(source), folder / "model.onnx")
    return folder / "model.onnx"


LIKE_1B, LIKE_3B, UNTIED = models.LIKE_1B, models.LIKE_3B, models.UNTIED
#: name -> configuration, how to make the file from a LLaMA in a folder
FORMS: dict[str, tuple[dict, Callable]] = {
    "legacy": (LIKE_1B, models.export_legacy),
    "legacy, upstream's script": (LIKE_1B, lambda m, f: models.export_legacy(m, f, upstream=True)),
    "as published": (
        LIKE_1B,
        lambda m, f: deduped(models.export_legacy(m, f / "twice", upstream=True), f),
    ),
    "3B-like": (LIKE_3B, lambda m, f: deduped(models.export_legacy(m, f / "twice"), f)),
    "untied": (UNTIED, models.export_legacy),
    "inline": (UNTIED, lambda m, f: inline(models.export_legacy(m, f / "external"), f / "inline")),
    "fp16 storage": (
        LIKE_1B,
        lambda m, f: stored(deduped(models.export_legacy(m, f / "a"), f / "b"), f / "c", "fp16"),
    ),
    "int8 storage": (
        LIKE_1B,
        lambda m, f: stored(deduped(models.export_legacy(m, f / "a"), f / "b"), f / "c", "int8"),
    ),
    "int8 storage, untied": (
        UNTIED,
        lambda m, f: stored(models.export_legacy(m, f / "a"), f / "b", "int8"),
    ),
    "dynamo, opset 18": (LIKE_1B, lambda m, f: models.export_dynamo(m, f, opset=18)),
    "dynamo, opset 18, untied": (UNTIED, lambda m, f: models.export_dynamo(m, f, opset=18)),
    "dynamo, opset 23": (LIKE_3B, lambda m, f: models.export_dynamo(m, f, opset=23)),
    "dynamo, opset 23, Attention": (
        LIKE_1B,
        lambda m, f: models.export_dynamo(m, f, opset=23, attention="sdpa"),
    ),
}
SLOW = {name for name in FORMS if name.startswith("dynamo,")} - {"dynamo, opset 18"}
MAX_DIFFERENCE = 2e-5  # of logits up to 10; 4e-6 was the most seen


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FORMS],
)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def config(form: str) -> dict:
    return FORMS[form][0]


@pytest.fixture(scope="module")
def path(form: str, config: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FORMS[form][1](models.random_llama(config), tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def llama(path: Path) -> LlamaGraph:
    return read_llama(path, max_positions=CONTEXT)


@pytest.fixture(scope="module")
def prompt(config: dict) -> list[int]:
    return np.random.default_rng(5).integers(0, config["vocab_size"], 60).tolist()


def test_the_geometry_is_read(llama: LlamaGraph, config: dict, form: str) -> None:
    assert len(llama.layers) == config["num_hidden_layers"]
    assert llama.num_heads == config["num_attention_heads"]
    assert llama.num_kv_heads == config["num_key_value_heads"]
    assert llama.head_dim == config["head_dim"]
    assert llama.hidden_size == config["hidden_size"]
    assert llama.vocab_size == config["vocab_size"]
    assert llama.norm_epsilon == config["rms_norm_eps"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    for layer in llama.layers:
        assert layer.gate.shape == layer.up.shape == (hidden, inner)
        assert layer.down.shape == (inner, hidden)
        assert layer.k.shape == layer.v.shape == (hidden, llama.num_kv_heads * llama.head_dim)
    one_matrix = config["tie_word_embeddings"] and not form.startswith("legacy")
    assert llama.tied == one_matrix


def test_the_weights_are_the_right_ones(llama: LlamaGraph, config: dict, form: str) -> None:
    """Numbers of the checkpoint, not only shapes: gate and up, k and v could be mixed up."""
    if "int8" in form or "fp16" in form:
        kind = "int8" if "int8" in form else "float16"
        assert all(text.startswith(f"{kind} behind Cast") for text in llama.storage)
        return
    state = models.random_llama(config).state_dict()
    names = {
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
        "input_norm": "input_layernorm",
        "post_norm": "post_attention_layernorm",
    }
    tensors = {tensor.name: tensor for tensor in llama.flow.model.graph.initializer}
    for index, layer in enumerate(llama.layers):
        for part, name in names.items():
            weight = getattr(layer, part)
            values = numpy_helper.to_array(tensors[weight.name], str(llama.flow.data_folder))
            expected = state[f"model.layers.{index}.{name}.weight"].numpy().T
            found = values.T if weight.transposed else values
            np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    assert llama.storage == ()


def test_the_rotary_tables_are_those_of_transformers(llama: LlamaGraph, config: dict) -> None:
    import torch
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(models.random_llama(config).config)
    cos, sin = rotary(torch.zeros(1, 1), torch.arange(CONTEXT)[None])
    half = config["head_dim"] // 2
    assert llama.rope_cos.shape == (CONTEXT, half)
    np.testing.assert_allclose(llama.rope_cos, cos[0, :, :half], rtol=0, atol=3e-7)
    np.testing.assert_allclose(llama.rope_sin, sin[0, :, :half], rtol=0, atol=3e-7)


@pytest.mark.parametrize("rows", [None, ROWS])
def test_logits_are_the_published_graphs(
    path: Path, llama: LlamaGraph, prompt: list[int], rows: tuple[int, int] | None
) -> None:
    compact = compact_graph(llama, rows=rows)
    decoder = load_compact(compact.model, compact.data_folder).decoder()
    published = Published(path)
    allowed = rows or (0, llama.vocab_size - 1)
    expected = greedy_path(published, prompt, 48, allowed=allowed)
    comparison = compare_along(published, decoder, prompt, expected)
    assert comparison.scale.max() < 20
    assert comparison.max_abs.max() <= MAX_DIFFERENCE
    assert comparison.greedy.all()
    assert greedy_path(decoder, prompt, 48, allowed=allowed) == expected


def test_only_the_wanted_rows_are_multiplied(llama: LlamaGraph, form: str) -> None:
    compact = compact_graph(llama, rows=ROWS)
    assert compact.row_offset == ROWS[0]
    assert compact.num_rows == ROWS[1] - ROWS[0] + 1
    reads_all = [note for note in compact.notes if "reads the whole" in note]
    column_major = {"legacy", "legacy, upstream's script", "untied", "dynamo, opset 18, untied"}
    assert len(reads_all) == (1 if form in column_major else 0)


def test_no_weight_is_copied(llama: LlamaGraph, path: Path, form: str) -> None:
    """Every weight that lies in the sidecar is a reference to the same bytes of it."""
    model = onnx.load_model_from_string(compact_graph(llama, rows=ROWS).model)
    sidecar = path.with_name("model.onnx_data")
    taken = [t for t in model.graph.initializer if external_data_helper.uses_external_data(t)]
    if not sidecar.exists():
        assert form == "inline"
        assert not taken
        return
    tables = llama.rope_cos.nbytes + llama.rope_sin.nbytes
    inside = sum(len(t.raw_data) for t in model.graph.initializer if t not in taken)
    assert inside <= tables + 20_000
    big = [w for layer in llama.layers for w in (layer.q, layer.gate, layer.down)]
    assert len(taken) >= len(big)
    originals = external_ranges(onnx.load(path, load_external_data=False))
    for location, start, length in external_ranges(model):
        assert location == sidecar.name
        assert any(
            start >= other and start + length <= other + size for _, other, size in originals
        )


def external_ranges(model: onnx.ModelProto) -> list[tuple[str, int, int]]:
    found = []
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            info = external_data_helper.ExternalDataInfo(tensor)
            found.append((info.location, info.offset or 0, info.length))
    return found


def test_names_do_not_matter(path: Path, form: str, tmp_path: Path) -> None:
    def shuffle_names(graph: onnx.GraphProto) -> None:
        fixed = {value.name for value in [*graph.input, *graph.output]}
        names = sorted(
            {name for node in graph.node for name in [*node.input, *node.output] if name} - fixed
        )
        order = np.random.default_rng(1).permutation(len(names))
        renamed = {name: f"t{number}" for name, number in zip(names, order, strict=True)}
        for index, node in enumerate(graph.node):
            node.name = f"n{index}"
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
        del graph.value_info[:]

    renamed = models.edit(path, tmp_path / "renamed", shuffle_names)
    compact = compact_graph(read_llama(renamed, max_positions=CONTEXT))
    decoder = load_compact(compact.model, compact.data_folder).decoder()
    original = compact_graph(read_llama(path, max_positions=CONTEXT))
    other = load_compact(original.model, original.data_folder).decoder()
    np.testing.assert_array_equal(decoder.feed([1, 2, 3]), other.feed([1, 2, 3]))


def test_it_loads_from_the_links_of_the_hubs_cache(path: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "llasa-1b-onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(path.parent.glob("model.onnx*"))):
        blob = blobs / f"{number:040x}"
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../../../blobs") / blob.name)
    linked = compact_graph(read_llama(snapshot / "model.onnx", max_positions=CONTEXT))
    plain = compact_graph(read_llama(path, max_positions=CONTEXT))
    rows = [load(graph).feed([3, 1, 2]) for graph in (linked, plain)]
    np.testing.assert_array_equal(*rows)


def load(graph: CompactGraph):
    return load_compact(graph.model, graph.data_folder).decoder()
