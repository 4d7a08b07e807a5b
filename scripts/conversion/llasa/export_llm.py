"""LLaMA checkpoint -> model.onnx, one graph for prefill and decode.

    python -m scripts.conversion.llasa.export_llm CHECKPOINT_FOLDER model.onnx

Inputs (B batch, S new tokens, P past tokens): `input_ids` int64 [B, S], `attention_mask` int64
[B, P+S], `position_ids` int64 [B, S], `past_key_values.<i>.key|value` float32 [B, KV, P, D].
Outputs: `logits` float32 [B, 1, V] of the last position, `present.<i>.key|value` float32
[B, KV, P+S, D].

The graph is transformers' own `LlamaForCausalLM`, traced without its weights; the weights then
go from the checkpoint into the file one at a time, so that memory holds one tensor, not a model.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from scripts.conversion.llasa.checkpoint import Checkpoint, CheckpointError, read_json
from scripts.conversion.llasa.onnx_store import (
    Array,
    Source,
    declare,
    fold_constants,
    save_model,
)

logger = logging.getLogger(__name__)

OPSET = 17
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class GrowingCache:
    """The two calls that transformers' attention makes on a cache, over plain tensors."""

    def __init__(self, past: Sequence[torch.Tensor]) -> None:
        self.past = past
        self.present: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, KV, S, D] to layer `layer_idx` and return the whole of it."""
        key = torch.cat([self.past[2 * layer_idx], key], dim=2)
        value = torch.cat([self.past[2 * layer_idx + 1], value], dim=2)
        self.present += [key, value]
        return key, value


class CachedStep(nn.Module):
    """A LLaMA's forward pass over new tokens, in the shape of the graph's contract."""

    def __init__(self, llama: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = llama.model
        self.lm_head = llama.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        *past: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The graph's inputs to its outputs, in the order of the module's docstring."""
        columns = torch.arange(attention_mask.shape[1])
        rows = columns[attention_mask.shape[1] - input_ids.shape[1] :]
        seen = (columns <= rows[:, None]) & (attention_mask > 0)[:, None, None, :]
        # The lowest finite number rather than -inf: a row of padding that sees nothing gives an
        # even mix, not NaN.
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)

        cache = GrowingCache(past)
        hidden = self.model.embed_tokens(input_ids)
        angles = self.model.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.model.layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_embeddings=angles,
                position_ids=position_ids,
                cache=cache,
                use_cache=True,
            )
        logits = self.lm_head(self.model.norm(hidden[:, -1:]))
        return (logits, *cache.present)


def weightless_llama(config: LlamaConfig) -> LlamaForCausalLM:
    """A LLaMA of `config`'s size whose weights are zeros that take no memory."""
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    llama.train(False)
    llama.model.rotary_emb = LlamaRotaryEmbedding(config)
    for module in llama.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            zeros = torch.zeros(1).expand(weight.shape)
            setattr(module, name, nn.Parameter(zeros, requires_grad=False))
    return llama


def trace(config: LlamaConfig) -> onnx.ModelProto:
    """The graph of the contract; the weights are inputs named as in the checkpoint."""
    llama = weightless_llama(config)
    layers = range(config.num_hidden_layers)
    past_names = [f"past_key_values.{i}.{side}" for i in layers for side in ("key", "value")]
    present_names = [f"present.{i}.{side}" for i in layers for side in ("key", "value")]
    batch, past, new = 2, 3, 4  # no two alike, so that no size is mistaken for another
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    ids = torch.zeros(batch, new, dtype=torch.int64)
    mask = torch.ones(batch, past + new, dtype=torch.int64)
    num_kv_heads = config.num_key_value_heads or config.num_attention_heads
    cache = [torch.zeros(batch, num_kv_heads, past, head_dim) for _ in past_names]
    tokens = {0: "batch", 1: "sequence"}
    axes: dict[str, dict[int, str]] = {
        "input_ids": tokens,
        "attention_mask": {0: "batch", 1: "total_length"},
        "position_ids": tokens,
        "logits": {0: "batch"},
    }
    axes |= {name: {0: "batch", 2: "past_length"} for name in past_names}
    axes |= {name: {0: "batch", 2: "total_length"} for name in present_names}
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as work,
    ):
        path = Path(work) / "graph.onnx"
        warnings.simplefilter("ignore")  # the legacy exporter's notices about itself
        torch.onnx.export(
            CachedStep(llama),
            (ids, mask, ids, *cache),
            str(path),
            input_names=["input_ids", "attention_mask", "position_ids", *past_names],
            output_names=["logits", *present_names],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
            export_params=False,
            keep_initializers_as_inputs=True,  # or weights with equal values become one
            do_constant_folding=False,  # it would compute with the weights that are not there
        )
        return onnx.load(path)


def turn_weights(model: onnx.ModelProto) -> set[str]:
    """Take out the Transpose in front of each linear layer; returns the weights it turned.

    Those weights are to be stored as [in, out].
    """
    graph = model.graph
    weights = {value.name for value in graph.input}
    turned = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in weights
    }
    kept = [node for node in graph.node if node.output[0] not in turned]
    for node in kept:
        node.input[:] = [turned.get(name, name) for name in node.input]
    del graph.node[:]
    graph.node.extend(kept)
    return set(turned.values())


def export_llm(folder: Path, output: Path, *, external: bool | None = None) -> None:
    """Write the graph of the contract for the LLaMA checkpoint in `folder` to `output`.

    `external` puts the weights into `<output>_data`; None does so when they exceed 2 GB. A tied
    head is stored as a matrix of its own (see dedupe_embedding). Any float type of the
    checkpoint becomes float32. Raises CheckpointError when the folder is no LLaMA or lacks a
    weight.
    """
    kind = read_json(folder / "config.json").get("model_type")
    if kind != "llama":
        raise CheckpointError(f"{folder}: model_type is {kind!r}, expected 'llama'")
    config = LlamaConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    checkpoint = Checkpoint(folder)
    tied = config.tie_word_embeddings
    config.tie_word_embeddings = False  # the graph has two matrices; where they come from is below

    model = trace(config)
    fold_constants(model)
    turned = turn_weights(model)
    sources: dict[str, Source] = {}
    contract = {"input_ids", "attention_mask", "position_ids"}
    inputs = list(model.graph.input)
    del model.graph.input[:]
    for value in inputs:
        if value.name in contract or value.name.startswith("past_key_values."):
            model.graph.input.append(value)
            continue
        name = EMBEDDING if value.name == HEAD and tied else value.name
        if name not in checkpoint:
            raise CheckpointError(f"{folder}: no tensor {name}")
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        transposed = value.name in turned
        model.graph.initializer.append(declare(value.name, shape[::-1] if transposed else shape))
        sources[value.name] = partial(_weight, checkpoint, name, transposed=transposed)
    # The exporter names this size after a node; only the last position leaves the graph.
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    save_model(model, output, sources, external=external)
    onnx.checker.check_model(str(output))
    logger.info("wrote %s (%d weights)", output, len(sources))


def _weight(checkpoint: Checkpoint, name: str, *, transposed: bool) -> Array:
    values: Array = checkpoint[name].to(torch.float32).numpy()
    return values.T if transposed else values


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and the weights")
    parser.add_argument("output", type=Path, help="the .onnx file to write")
    parser.add_argument(
        "--external",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="weights beside the graph in <output>_data (default: when they exceed 2 GB)",
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    export_llm(arguments.checkpoint, arguments.output, external=arguments.external)


if __name__ == "__main__":
    main()
