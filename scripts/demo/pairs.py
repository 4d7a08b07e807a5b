"""Codes with their sound, made by an earlier voice, for teaching an encoder to its decoder.

The first voice's weights hold a decoder and a language model but not the encoder they were trained
with. What the language model says, and how the decoder renders it, shows an encoder what to find:

    python -m scripts.demo.pairs first_voice_fp16.npz pairs.npz --scowl /usr/share/dict/scowl

The npz holds ``codes`` int16 [n] and ``pcm`` int16 [320 * n], utterances end to end.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.demo.codec import NUM_CODES, Codec, load_decoder

CONTROLS, CHARACTERS = 8, " abcdefghijklmnopqrstuvwxyz'.,?!"
FIRST_CODE = CONTROLS + len(CHARACTERS)
TEXT_START, TEXT_END, SPEECH_START, SPEECH_END = 2, 3, 4, 5
"""Ids of the first voice: markers around characters, no chat template."""
SMALL_WORDS = "the a of to in and is was it that for on with he she they we you at by this from"


def make_texts(scowl: Path, count: int, seed: int) -> list[str]:
    """Common words in any order, 3 to 11 a line."""
    rng = random.Random(seed)
    listed = [
        word
        for size in (10, 20)
        for word in (scowl / f"english-words.{size}").read_text(encoding="latin1").split()
        if re.fullmatch("[a-z]{2,10}", word)
    ]
    small = SMALL_WORDS.split()
    return [
        " ".join(
            rng.choice(small) if rng.random() < 0.4 else rng.choice(listed)
            for _ in range(rng.randint(3, 11))
        )
        + rng.choice("..?,!")
        for _ in range(count)
    ]


def load_language_model(path: Path) -> LlamaForCausalLM:
    """The first voice's language model."""
    with np.load(path) as data:
        state = {
            name.removeprefix("lm."): torch.tensor(data[name].astype(np.float32))
            for name in data.files
            if name.startswith("lm.")
        }
    config = LlamaConfig(
        vocab_size=FIRST_CODE + NUM_CODES,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=SPEECH_END,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state, strict=False)
    return model


@torch.no_grad()
def speak(model: LlamaForCausalLM, texts: list[str]) -> list[list[int]]:
    """Codes of each text."""
    prompts = [
        [TEXT_START, *(CONTROLS + CHARACTERS.index(c) for c in text), TEXT_END, SPEECH_START]
        for text in texts
    ]
    longest = max(map(len, prompts))
    made = model.generate(
        torch.tensor([[0] * (longest - len(p)) + p for p in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
        max_new_tokens=260,
        suppress_tokens=[i for i in range(FIRST_CODE) if i != SPEECH_END],
        do_sample=True,
        temperature=0.8,
        top_k=50,
    )[:, longest:]
    return [[token - FIRST_CODE for token in line if token >= FIRST_CODE] for line in made.tolist()]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voice", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scowl", type=Path, default=Path("/usr/share/dict/scowl"))
    parser.add_argument("--count", type=int, default=192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    model = load_language_model(arguments.voice)
    codec = Codec().eval()
    load_decoder(codec, arguments.voice)
    texts = make_texts(arguments.scowl, arguments.count, arguments.seed)
    codes, sounds = [], []
    for at in range(0, len(texts), 64):
        for line in speak(model, texts[at : at + 64]):
            if len(line) >= 20:
                with torch.no_grad():
                    sounds.append(codec.decode(torch.tensor([line]))[0].numpy())
                codes.append(np.asarray(line, np.int16))
    pcm = (np.clip(np.concatenate(sounds), -1, 1) * 32767).astype(np.int16)
    np.savez(arguments.out, codes=np.concatenate(codes), pcm=pcm)


if __name__ == "__main__":
    main()
