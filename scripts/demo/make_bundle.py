"""Trained weights of the small English voice -> the bundle that the package ships.

    python -m scripts.demo.make_bundle --weights voice.npz --out phoonnx_llasa/demo

The .npz holds `lm.*` (a LLaMA under transformers' names), `codec.q.project_out.*` and
`codec.dec.*` (an XCodec2 decoder). They become two Hugging Face checkpoints, which go through the
same conversion as Llasa itself: export, dedupe, smaller storage, bundle.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from transformers import LlamaConfig, Wav2Vec2BertConfig, Xcodec2Config

from scripts.conversion.llasa.dedupe_embedding import dedupe_embedding
from scripts.conversion.llasa.export_llm import export_llm
from scripts.conversion.llasa.export_xcodec2 import export_codec
from scripts.conversion.llasa.make_bundle import BundleParts, make_bundle
from scripts.conversion.llasa.store_weights import Form, store_weights

Weights = Mapping[str, NDArray[np.floating[Any]]]

HERE: Final = Path(__file__).parent

#: The vocabulary the voice is trained on, in the order of its ids.
CONTROL_TOKENS: Final = (
    "<|pad|>",
    "<|begin_of_text|>",
    "<|TEXT_UNDERSTANDING_START|>",
    "<|TEXT_UNDERSTANDING_END|>",
    "<|SPEECH_GENERATION_START|>",
    "<|SPEECH_GENERATION_END|>",
    "<|eot_id|>",
    "<|unk|>",
)
CHARACTERS: Final = " abcdefghijklmnopqrstuvwxyz'.,?!"
#: Llasa's markers without the words of its chat template: this voice has characters, no words.
PROMPT: Final = (
    "<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|><|SPEECH_GENERATION_START|>"
)
HEAD_DIM: Final = 64
LEVELS: Final = 4  # of each quantized dimension
ROPE_THETA: Final = 10_000.0
RMS_NORM_EPS: Final = 1e-6

_ONES: Final = "zero one two three four five six seven eight nine".split()
_TEENS: Final = (
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
)
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_rules() -> Iterator[tuple[str, str]]:
    """Patterns and what they become: whole numbers up to 9,999 as words, longer ones by digits."""
    yield r"(?<=\d),(?=\d{3}(?!\d))", ""  # 1,250
    yield r"(?<=\d)\.(?=\d)", " point "
    yield r"(?<=\d):00(?!\d)", " o'clock "
    yield r"(?<=\d):(?=\d\d(?!\d))", " "
    for digit, word in enumerate(_ONES[1:], 1):
        yield rf"(?<!\d){digit}(?=\d{{3}}(?!\d))", f" {word} thousand "
    for digit, word in enumerate(_ONES[1:], 1):
        yield rf"(?<!\d){digit}(?=\d\d(?!\d))", f" {word} hundred "
    yield r"(?<=hundred |thousand )0+", ""
    for digit, word in enumerate(_TEENS):
        yield rf"(?<!\d)1{digit}(?!\d)", f" {word} "
    for digit, word in enumerate(_TENS, 2):
        yield rf"(?<!\d){digit}0(?!\d)", f" {word} "
        yield rf"(?<!\d){digit}(?=\d(?!\d))", f" {word} "
    for digit, word in enumerate(_ONES):
        yield str(digit), f" {word} "


def make_normalizer() -> normalizers.Normalizer:
    """Any text -> the characters of the vocabulary, read as well as that few can.

    Accents go, letters become small, numbers and some signs become words, other stops become the
    nearest of `.,?!`. What is left over becomes a space.
    """
    rules = [
        (r"[’‘ʼ`´]", "'"),
        (r"(?<![a-z])'|'(?![a-z])", ""),  # quotation marks, not apostrophes
        (r"\bmr\.", "mister"),
        (r"\bmrs\.", "missus"),
        (r"\bdr\.", "doctor"),
        (r"%", " percent "),
        (r"&", " and "),
        (r"\+", " plus "),
        (r"=", " equals "),
        (r"(?<=\w)@(?=\w)", " at "),
        (r"\b1st\b", "first"),
        (r"\b2nd\b", "second"),
        (r"\b3rd\b", "third"),
        (r"(?<=\d)(st|nd|rd|th)\b", ""),
        *number_rules(),
        (r"[。．]", "."),
        (r"[，、]", ","),
        (r"\.{2,}|…", ","),
        (r"[;:]|--+|[–—―]|(?<= )-(?= )", ","),
        (r"[^a-z'.,?!]+", " "),
        (r" +(?=[.,?!])", ""),
        (r"(?<=,),+|^[ ,]+", ""),
        (r",(?=[.?!])", ""),
        (r",$", "."),
        (r",(?=[a-z])", ", "),
    ]
    return normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            *(normalizers.Replace(Regex(pattern), content) for pattern, content in rules),
            normalizers.Strip(),
        ]
    )


def make_tokenizer(num_codes: int) -> Tokenizer:
    """One token per character, with the ids the voice was trained on.

    A BPE without merges: a character that is no token gives no token.
    """
    codes = [f"<|s_{code}|>" for code in range(num_codes)]
    names = [*CONTROL_TOKENS, *CHARACTERS, *codes]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.normalizer = make_normalizer()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in codes])
    return tokenizer


def write_checkpoints(weights: Weights, folder: Path, *, gain: float = 1.0) -> None:
    """Write the weights as `folder`/llm and `folder`/xcodec2, the latter `gain` times as loud."""
    llm, codec = folder / "llm", folder / "xcodec2"
    llama = _named(weights, {"lm.": ""})
    num_codes = LEVELS ** weights["codec.q.project_out.weight"].shape[1]
    _save(llm, llama, _llama_config(llama))
    make_tokenizer(num_codes).save(str(llm / "tokenizer.json"))
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
    to full range while it streams.
    """
    with tempfile.TemporaryDirectory() as name, np.load(weights) as arrays:
        work = Path(name)
        write_checkpoints(arrays, work, gain=gain)
        graphs = {kind: work / kind / "model.onnx" for kind in ("separate", "deduped", "stored")}
        export_llm(work / "llm", graphs["separate"], external=False)
        dedupe_embedding(graphs["separate"], graphs["deduped"])
        model, codec = graphs["deduped"], work / "xcodec2_decoder.onnx"
        export_codec(work / "xcodec2", codec)
        if form is not None:
            store_weights(model, graphs["stored"], form)
            store_weights(codec, work / "stored" / codec.name, form)
            model, codec = graphs["stored"], work / "stored" / codec.name
        parts = BundleParts(
            model=model,
            codec=codec,
            tokenizer=work / "llm" / "tokenizer.json",
            voices=voices,
            title="The built-in demo voice",
            languages=("en",),
            license="Apache-2.0",
            license_id="apache-2.0",
            source="trained from scratch on the output of hibari-tts 0.2.1 (Apache-2.0)",
            base_models=(),
            context_length=context_length,
            prompt=PROMPT,
            single_speaker=True,
            inference={
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 1.0,
                "max_chunk_chars": max_chunk_chars,
            },
            card=(HERE / "card.md").read_text(encoding="utf-8"),
        )
        make_bundle(output, parts)


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
        bos_token_id=CONTROL_TOKENS.index("<|begin_of_text|>"),
        eos_token_id=CONTROL_TOKENS.index("<|SPEECH_GENERATION_END|>"),
        pad_token_id=CONTROL_TOKENS.index("<|pad|>"),
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
    parser.add_argument("--context-length", type=int, default=512)
    parser.add_argument("--gain", type=float, default=3.5, help="times as loud as it was trained")
    parser.add_argument("--max-chunk-chars", type=int, default=60)
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
