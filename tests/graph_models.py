"""Small LLaMAs, exported in different ways, and plain means to run the graphs of the contract.

torch takes seconds to import, so the functions that need it import it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # so small that a short head size sees all three bands
}
#: Llasa-1B's proportions, and what the other sizes do differently.
LIKE_1B: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_parameters": LLAMA3_ROPE,
    "tie_word_embeddings": True,
}
LIKE_3B = LIKE_1B | {
    "hidden_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
UNTIED = LIKE_1B | {"tie_word_embeddings": False, "num_key_value_heads": 8, "rms_norm_eps": 3e-5}


def random_llama(config: dict[str, Any] = LIKE_1B, *, seed: int = 0) -> Any:
    """A LlamaForCausalLM whose every weight matters: gains differ, and attention is not flat."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        llama = LlamaForCausalLM(LlamaConfig(**config)).eval()
        for weight in llama.parameters():
            if weight.dim() == 1:
                weight.data.uniform_(0.5, 1.5)
            else:
                weight.data.normal_(0.0, 1.0 / weight.shape[-1] ** 0.5)
    return llama


def upstream_step(llama: Any) -> Any:
    """The forward pass as phoonnx's own script exports it, with transformers' cache and masks."""
    import torch
    from transformers import DynamicCache

    class UpstreamStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama

        def forward(self, input_ids, attention_mask, position_ids, *past):
            cache = DynamicCache([(past[i], past[i + 1]) for i in range(0, len(past), 2)])
            out = self.model.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            logits = self.model.lm_head(out.last_hidden_state[:, -1:, :])
            layers = out.past_key_values.layers
            return (logits, *(part for layer in layers for part in (layer.keys, layer.values)))

    return UpstreamStep()


def export_legacy(llama: Any, folder: Path, *, upstream: bool = False) -> Path:
    """model.onnx by the TorchScript exporter, with its weights in ``model.onnx_data``."""
    import torch

    from scripts.conversion.llasa.export_llm import CachedStep

    llama.config._attn_implementation = "eager"
    step = upstream_step(llama) if upstream else CachedStep(llama)
    names, axes, example = _contract(llama.config)
    graph = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            step,
            example,
            graph,
            input_names=names[0],
            output_names=names[1],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    model = onnx.load_model_from_string(graph.getvalue())
    return save_external(model, folder)


def export_dynamo(llama: Any, folder: Path, *, opset: int, attention: str = "eager") -> Path:
    """model.onnx by the newer exporter; opset 23 has operators for norm, rotation and attention."""
    import torch

    from scripts.conversion.llasa.export_llm import CachedStep

    llama.config._attn_implementation = attention
    names, _, example = _contract(llama.config)
    dynamic = torch.export.Dim.DYNAMIC
    tokens = {0: dynamic, 1: dynamic}
    cache = tuple({0: dynamic, 2: dynamic} for _ in example[3:])
    step = upstream_step(llama) if attention == "sdpa" else CachedStep(llama)
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                step,
                example,
                input_names=names[0],
                output_names=names[1],
                dynamic_shapes=(tokens, tokens, tokens, cache),
                opset_version=opset,
                dynamo=True,
            )
    finally:
        logging.disable(level)
    return save_external(program.model_proto, folder)


def save_external(model: onnx.ModelProto, folder: Path) -> Path:
    """Write a graph with its bigger weights beside it, each at the start of a page."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=1024,
    )
    return path


def edit(source: Path, folder: Path, change: Any) -> Path:
    """A copy of a graph and its weights with ``change(graph)`` made to it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(source, load_external_data=False)
    change(model.graph)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    sidecar = source.with_name("model.onnx_data")
    if sidecar.exists():
        shutil.copyfile(sidecar, folder / sidecar.name)
    return path


class Published:
    """A graph of the contract, run in the plainest way."""

    row_offset = 0

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.shapes = {
            spec.name: spec.shape
            for spec in self.session.get_inputs()
            if spec.name.startswith("past_key_values.")
        }
        self.truncate(0)

    def truncate(self, length: int) -> None:
        assert length == 0
        self.past = {
            name: np.zeros((1, shape[1], 0, shape[3]), np.float32)
            for name, shape in self.shapes.items()
        }

    def feed(self, ids: Sequence[int]) -> np.ndarray:
        start = next(iter(self.past.values())).shape[2]
        stop = start + len(ids)
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop, dtype=np.int64)[None],
        }
        names = ["logits", *(name.replace("past_key_values", "present") for name in self.past)]
        logits, *present = self.session.run(names, inputs | self.past)
        self.past = dict(zip(self.past, present, strict=True))
        return logits.reshape(-1)


def _contract(config: Any) -> tuple[tuple[list[str], list[str]], Any, tuple[Any, ...]]:
    """Names, dynamic axes and an example of the contract's inputs and outputs."""
    import torch

    parts = [f"{i}.{part}" for i in range(config.num_hidden_layers) for part in ("key", "value")]
    past = [f"past_key_values.{part}" for part in parts]
    present = [f"present.{part}" for part in parts]
    batch, old, new = 2, 3, 4
    ids = torch.zeros(batch, new, dtype=torch.int64)
    mask = torch.ones(batch, old + new, dtype=torch.int64)
    places = torch.arange(old, old + new)[None].repeat(batch, 1)
    cache = [torch.zeros(batch, config.num_key_value_heads, old, config.head_dim) for _ in past]
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "position_ids")}
    axes |= {"attention_mask": {0: "batch", 1: "total"}, "logits": {0: "batch"}}
    axes |= {name: {0: "batch", 2: "past"} for name in past}
    axes |= {name: {0: "batch", 2: "total"} for name in present}
    inputs = ["input_ids", "attention_mask", "position_ids", *past]
    return (inputs, ["logits", *present]), axes, (ids, mask, places, *cache)
