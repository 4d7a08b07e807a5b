"""Trained weights of the small English voice -> the bundle that the package ships.

    python -m scripts.demo.make_bundle --weights voice.npz --out phoonnx_llasa/demo

The .npz holds `lm.*` (a LLaMA under transformers' names), `codec.q.project_out.*` and
`codec.dec.*` (an XCodec2 decoder). They become two Hugging Face checkpoints, which go through the
same conversion as Llasa itself, gates included.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import LlamaConfig, Wav2Vec2BertConfig, Xcodec2Config

from scripts.conversion.llasa.convert import Settings, convert
from scripts.conversion.llasa.store_weights import Form
from scripts.demo.tokenizer import CONTROLS, make_tokenizer

Weights = Mapping[str, NDArray[np.floating[Any]]]

HERE: Final = Path(__file__).parent

HEAD_DIM: Final = 64
LEVELS: Final = 4  # of each quantized dimension
ROPE_THETA: Final = 10_000.0
RMS_NORM_EPS: Final = 1e-6


def write_checkpoints(weights: Weights, folder: Path, *, gain: float = 1.0) -> None:
    """Write the weights as `folder`/llm and `folder`/xcodec2, the latter `gain` times as loud."""
    llm, codec = folder / "llm", folder / "xcodec2"
    llama = _named(weights, {"lm.": ""})
    _save(llm, llama, _llama_config(llama))
    make_tokenizer().save(str(llm / "tokenizer.json"))
    decoder = _named(weights, {"codec.q.": "quantizer.", "codec.dec.": "acoustic_decoder."})
    # The first half of the head is the logarithm of the magnitudes.
    bias = decoder["acoustic_decoder.head.linear.bias"]
    bias[: len(bias) // 2] += math.log(gain)
    _save(codec, decoder, _codec_config(decoder))


def build(
    weights: Path,
    output: Path,
    *,
    form: Form | None,
    voices: Path | None,
    context_length: int,
    max_chunk_chars: int,
    gain: float,
) -> None:
    """Make the bundle.

    `form` None keeps float32. `gain` is for a voice without presets, which the host cannot bring
    to full range while it streams. Raises what `convert` raises: StageError where a gate is not
    passed.
    """
    with tempfile.TemporaryDirectory() as name, np.load(weights) as arrays:
        work = Path(name)
        write_checkpoints(arrays, work, gain=gain)
        profile = {
            "title": "The built-in demo voice",
            "languages": ["en"],
            "license": "Apache-2.0",
            "license_id": "apache-2.0",
            "source": "trained on the output of hibari-tts 0.2.1 (Apache-2.0)",
            "base_models": [],
            "context_length": context_length,
            "single_speaker": True,
            "inference": {
                "temperature": 0.5,
                "top_k": 20,
                "top_p": 1.0,
                "max_chunk_chars": max_chunk_chars,
            },
            "card": (HERE / "card.md").read_text(encoding="utf-8"),
        }
        (work / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
        convert(
            Settings(
                llm=work / "llm",
                codec=work / "xcodec2",
                work=work / "work",
                out=output,
                profile=work / "profile.json",
                form=form or "fp32",
                voices=voices,
                presets=False,
                samples=False,
            )
        )


def _named(weights: Weights, prefixes: Mapping[str, str]) -> dict[str, torch.Tensor]:
    return {
        new + name.removeprefix(old): torch.from_numpy(weights[name].astype(np.float32))
        for name in weights
        for old, new in prefixes.items()
        if name.startswith(old)
    }


def _save(folder: Path, tensors: dict[str, torch.Tensor], config: Any) -> None:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)


def _llama_config(tensors: Mapping[str, torch.Tensor]) -> LlamaConfig:
    layer = "model.layers.0."
    vocab_size, hidden_size = tensors["model.embed_tokens.weight"].shape
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=tensors[layer + "mlp.gate_proj.weight"].shape[0],
        num_hidden_layers=sum(name.endswith("mlp.gate_proj.weight") for name in tensors),
        num_attention_heads=tensors[layer + "self_attn.q_proj.weight"].shape[0] // HEAD_DIM,
        num_key_value_heads=tensors[layer + "self_attn.k_proj.weight"].shape[0] // HEAD_DIM,
        head_dim=HEAD_DIM,
        rms_norm_eps=RMS_NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=CONTROLS.index("<|begin_of_text|>"),
        eos_token_id=CONTROLS.index("<|SPEECH_GENERATION_END|>"),
        pad_token_id=CONTROLS.index("<|pad|>"),
    )


def _codec_config(tensors: Mapping[str, torch.Tensor]) -> Xcodec2Config:
    decoder = "acoustic_decoder."
    hidden, latent = tensors[decoder + "fc.weight"].shape
    heads = hidden // HEAD_DIM
    return Xcodec2Config(
        hidden_size=hidden,
        intermediate_size=tensors[decoder + "layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=sum(name.endswith("mlp.fc1.weight") for name in tensors),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_DIM,
        semantic_model_config=Wav2Vec2BertConfig(
            hidden_size=latent - hidden, num_hidden_layers=1, num_attention_heads=heads
        ),
        quantization_dim=latent,
        quantization_levels=[LEVELS] * tensors["quantizer.project_out.weight"].shape[1],
    )


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--weights", type=Path, required=True, help=".npz of the trained voice")
    parser.add_argument("--out", type=Path, required=True, help="the bundle to write")
    parser.add_argument("--form", choices=("fp32", "fp16", "int8"), default="int8")
    parser.add_argument("--voices", type=Path, help="voices.json (default: no presets)")
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--gain", type=float, default=3.5, help="times as loud as it was trained")
    parser.add_argument("--max-chunk-chars", type=int, default=120)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build(
        arguments.weights,
        arguments.out,
        form=None if arguments.form == "fp32" else arguments.form,
        voices=arguments.voices,
        context_length=arguments.context_length,
        max_chunk_chars=arguments.max_chunk_chars,
        gain=arguments.gain,
    )


if __name__ == "__main__":
    main()
