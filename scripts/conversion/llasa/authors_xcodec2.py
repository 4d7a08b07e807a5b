"""The authors' own XCodec2 checkpoint (HKUSTAudio/xcodec2) under transformers' names.

Their decoder is the same network with other names, one matrix for query, key and value, and
rotary pairs that lie side by side (2i, 2i + 1) where transformers keeps halves (i, i + D / 2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import torch
from transformers import Wav2Vec2BertConfig, Xcodec2Config

HEAD_DIM: Final = 64  # `pos_meb_dim` of their CodecDecoderVocos
LEVELS: Final = 4  # per quantized dimension, in their ResidualFSQ

_RENAMED: Final = (
    (r"fc_post_a\.", "acoustic_decoder.fc."),
    (r"generator\.quantizer\.project_out\.", "quantizer.project_out."),
    (r"generator\.backbone\.(embed|prior_net|post_net)\.", r"acoustic_decoder.\1."),
    (r"generator\.backbone\.final_layer_norm\.", "acoustic_decoder.norm."),
    (r"generator\.backbone\.transformers\.(\d+)\.mlp\.", r"acoustic_decoder.layers.\1.mlp."),
    (
        r"generator\.backbone\.transformers\.(\d+)\.att_norm\.",
        r"acoustic_decoder.layers.\1.input_layernorm.",
    ),
    (
        r"generator\.backbone\.transformers\.(\d+)\.ffn_norm\.",
        r"acoustic_decoder.layers.\1.post_attention_layernorm.",
    ),
    (
        r"generator\.backbone\.transformers\.(\d+)\.att\.c_proj\.",
        r"acoustic_decoder.layers.\1.self_attn.o_proj.",
    ),
    (r"generator\.head\.out\.", "acoustic_decoder.head.linear."),
)
_ATTENTION: Final = re.compile(r"generator\.backbone\.transformers\.(\d+)\.att\.c_attn\.weight")


def is_authors(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether these are the tensors of the authors' `XCodec2Model`."""
    return "generator.head.out.weight" in tensors


def to_transformers(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The decoding half of the authors' model, as transformers' `Xcodec2Model` names it."""
    renamed: dict[str, torch.Tensor] = {}
    for name in tensors:
        if attention := _ATTENTION.fullmatch(name):
            prefix = f"acoustic_decoder.layers.{attention[1]}.self_attn."
            query, key, value = tensors[name].chunk(3)
            renamed[prefix + "q_proj.weight"] = _halves(query)
            renamed[prefix + "k_proj.weight"] = _halves(key)
            renamed[prefix + "v_proj.weight"] = value
            continue
        for pattern, replacement in _RENAMED:
            if re.match(pattern, name):
                renamed[re.sub(pattern, replacement, name)] = tensors[name]
    return renamed


def read_config(tensors: Mapping[str, torch.Tensor]) -> Xcodec2Config:
    """The configuration, from the shapes: the authors' own has only the encoder's."""
    hidden, quantized = tensors["fc_post_a.weight"].shape
    heads = hidden // HEAD_DIM
    return Xcodec2Config(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=sum(bool(_ATTENTION.fullmatch(name)) for name in tensors),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_DIM,
        semantic_model_config=Wav2Vec2BertConfig(
            hidden_size=quantized - hidden, num_hidden_layers=1, num_attention_heads=heads
        ),
        quantization_dim=quantized,
        quantization_levels=[LEVELS] * tensors["generator.quantizer.project_out.weight"].shape[1],
    )


def _halves(weight: torch.Tensor) -> torch.Tensor:
    """Rows of [heads * D, hidden] reordered so that rotary pairs are halves of a head."""
    pairs = weight.reshape(-1, HEAD_DIM // 2, 2, weight.shape[-1])
    return pairs.transpose(1, 2).reshape(weight.shape)
