"""Checkpoints with random weights: tiny ones for tests, true-size ones for measuring.

    python -m scripts.conversion.llasa.random_checkpoints FOLDER --size tiny

Writes FOLDER/llm (LLaMA: config.json, model.safetensors, tokenizer.json) and FOLDER/xcodec2
(config.json, and of the weights only those that decode). They have the architectures, names and
geometry of the real ones and say nothing about sound.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, Wav2Vec2BertConfig, Xcodec2Config
from transformers.models.xcodec2.modeling_xcodec2 import Xcodec2Decoder, Xcodec2Quantizer

#: The pre-tokenizer of Llama 3 (tokenizer.json of Llama-3.2-1B-Instruct).
LLAMA3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: What Llasa adds to Llama's tokens before the speech tokens, in its order.
LLASA_MARKERS: Final = tuple(
    f"<|{task}_{edge}|>"
    for task in (
        "TEXT_GENERATION",
        "TEXT_UNDERSTANDING",
        "SPEECH_GENERATION",
        "SPEECH_UNDERSTANDING",
    )
    for edge in ("START", "END")
)
_TRAINING_TEXT: Final = (
    "Dealing with family secrets is never easy, yet the rain had stopped before the morning.",
    "Convert the text to speech: Cutting Knowledge Date: December 2023 Today Date: 26 Jul 2024",
    "She said it's the third of 12 letters; we'll read the other ones when they're here.",
    "system user assistant The quick brown fox jumps over the lazy dog and nobody minds.",
    "处理家庭秘密从来都不是一件容易的事，今天的天气很好，我们一起去公园散步吧。",
    "突然，身边一阵笑声。我看着他们，意气风发地挺直了胸膛，甩了甩那稍显肉感的双臂。",
)


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers that tell a tiny pair of checkpoints from one of true size."""

    text_tokens: int  # entries of the byte-level BPE
    llama_tokens: int  # Llama's own special tokens
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    codec_hidden_size: int
    codec_layers: int
    codec_heads: int
    levels: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_codes(self) -> int:
        """Entries of the codebook."""
        return math.prod(self.levels)

    @property
    def vocab_size(self) -> int:
        """Tokens of the language model."""
        return self.text_tokens + self.llama_tokens + len(LLASA_MARKERS) + self.num_codes


SIZES: Final = {
    "tiny": Size(512, 16, 64, 128, 2, 4, 2, 16, 64, 2, 1, (4,) * 4, torch.float32),
    # LLaMA-3.2-1B and HKUSTAudio/xcodec2: vocab_size comes to 193,800 and num_codes to 65,536.
    "true": Size(128_000, 256, 2048, 8192, 16, 32, 8, 64, 1024, 12, 16, (4,) * 8, torch.bfloat16),
}


def llama_specials(count: int) -> Iterator[str]:
    """The first `count` special tokens of Llama 3.2, in order."""
    named = {
        0: "begin_of_text",
        1: "end_of_text",
        4: "finetune_right_pad_id",
        6: "start_header_id",
        7: "end_header_id",
        8: "eom_id",
        9: "eot_id",
        10: "python_tag",
    }
    reserved = 0
    for index in range(count):
        if index in named:
            yield f"<|{named[index]}|>"
        else:
            yield f"<|reserved_special_token_{reserved}|>"
            reserved += 1


def make_tokenizer(size: Size) -> Tokenizer:
    """A byte-level BPE in the shape of Llasa's: text, Llama's specials, markers, speech tokens.

    It is trained on a few lines; entries that these do not fill can never match.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _TRAINING_TEXT,
        BpeTrainer(
            vocab_size=min(size.text_tokens, 512),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    # A blank is never a byte of byte-level BPE, so these entries match nothing.
    for index in range(len(vocabulary), size.text_tokens):
        vocabulary[f"unused {index}"] = index
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer.model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True) for name in llama_specials(size.llama_tokens)]
    )
    tokenizer.add_tokens(
        [AddedToken(name, normalized=False) for name in LLASA_MARKERS]
        + [AddedToken(f"<|s_{code}|>", normalized=False) for code in range(size.num_codes)]
    )
    begin = "<|begin_of_text|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    return tokenizer


def llama_config(size: Size, tokenizer: Tokenizer) -> LlamaConfig:
    """LLaMA-3.2's configuration at the given size."""
    return LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        bos_token_id=tokenizer.token_to_id("<|begin_of_text|>"),
        eos_token_id=tokenizer.token_to_id("<|eot_id|>"),
    )


def write_llm(folder: Path, size: Size, *, seed: int = 0) -> None:
    """Write a LLaMA checkpoint with its tokenizer.

    The weights are wider than a training start's, so that what is said before moves the logits
    and greedy decoding does not repeat its input.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(size)
    if tokenizer.get_vocab_size() != size.vocab_size:
        raise RuntimeError(f"{tokenizer.get_vocab_size()} tokens instead of {size.vocab_size}")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = llama_config(size, tokenizer)
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    scale = 2.0 / math.sqrt(size.hidden_size)
    weights = {}
    for name, weight in llama.named_parameters():  # a tied head is not named a second time
        if weight.dim() < 2:
            weights[name] = torch.ones(weight.shape, dtype=size.dtype)
        else:
            values = torch.empty(weight.shape, dtype=size.dtype)
            weights[name] = values.normal_(0.0, scale, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)


def codec_config(size: Size) -> Xcodec2Config:
    """XCodec2's configuration at the given size: 16 kHz, hop 320, n_fft 1280."""
    hidden = size.codec_hidden_size
    return Xcodec2Config(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=size.codec_layers,
        num_attention_heads=size.codec_heads,
        num_key_value_heads=size.codec_heads,
        head_dim=64,
        semantic_model_config=Wav2Vec2BertConfig(
            hidden_size=hidden, num_hidden_layers=1, num_attention_heads=size.codec_heads
        ),
        quantization_dim=2 * hidden,
        quantization_levels=list(size.levels),
    )


def write_codec(folder: Path, size: Size, *, seed: int = 0) -> None:
    """Write the decoding half of an XCodec2 checkpoint.

    The head is set so that codes become a hiss of about -20 dB with a speech-like slope, whose
    loudness and phases follow the codes: neither silence nor clipping.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = codec_config(size)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        quantizer, decoder = Xcodec2Quantizer(config), Xcodec2Decoder(config)
        head, bins = decoder.head.linear, config.n_fft // 2 + 1
        with torch.no_grad():
            head.weight[bins:] *= 4
            head.bias[bins:].uniform_(-math.pi, math.pi)
            head.bias[:bins] = math.log(12.0) - 3.0 * torch.arange(bins) / bins
    weights = {
        f"quantizer.project_out.{k}": v for k, v in quantizer.project_out.state_dict().items()
    }
    weights |= {f"acoustic_decoder.{k}": v for k, v in decoder.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["Xcodec2Model"]
    config.save_pretrained(folder)


def write_checkpoints(folder: Path, size: str = "tiny", *, seed: int = 0) -> None:
    """Write `folder`/llm and `folder`/xcodec2; `size` is a key of SIZES."""
    write_llm(folder / "llm", SIZES[size], seed=seed)
    write_codec(folder / "xcodec2", SIZES[size], seed=seed)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="gets llm/ and xcodec2/")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    write_checkpoints(arguments.folder, arguments.size, seed=arguments.seed)


if __name__ == "__main__":
    main()
