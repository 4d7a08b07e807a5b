"""The small language model: Llama's architecture, Llasa's prompt, trained on one machine's CPU.

    python -m scripts.demo.lm teacher/ codes/ lm.pt --steps 2500 --decay-from 1500

A row is one utterance, or two said one after the other with both texts in the prompt: that is what
a preset is, so half of the rows teach what the runtime does with one. What makes it learn in little
time, none of it shipped: two attention heads of layers 1 to 3 are pulled towards the letter being
spoken; a classifier on layer 4 names the phoneme of the next frame; some codes the model reads are
wrong, so that it forgives its own errors. Matrices are trained with Muon, the rest with AdamW.

Work is counted in steps and every batch follows from the seed, so a run can be stopped and
continued. ``--workers 2`` are two processes with one thread each that average their gradients,
which loses far less to a busy machine than two threads in every operation.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray
from torch import Tensor, nn

from scripts.demo import tokenizer as tok
from scripts.demo.align import Aligner, letter_ends
from scripts.demo.codec import LEVELS, PHONEMES, frame_labels
from scripts.demo.teacher import read_shard, shards

IGNORE = -100
END = tok.CONTROLS.index("<|SPEECH_GENERATION_END|>")
WINDOW = 400
"""Utterances that are sorted by length together."""
BUDGET = 2304
"""Tokens of a batch and worker."""
LONGEST = 620


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, under the names of transformers' LlamaConfig."""

    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    intermediate_size: int = 768
    rope_theta: float = 10000.0
    vocab_size: int = tok.VOCABULARY
    guided_layers: tuple[int, ...] = (1, 2, 3)
    phoneme_layer: int = 4


class Norm(nn.RMSNorm):
    """RMSNorm whose weight follows the input's type, which keeps torch on its fused path."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Normalized x, of its own type."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Layer(nn.Module):
    """One block; its parameters carry transformers' names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.hidden_size, shape.intermediate_size
        self.heads = shape.num_attention_heads
        self.self_attn = nn.Module()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self.self_attn, name, nn.Linear(width, width, bias=False))
        self.mlp = nn.Module()
        self.mlp.gate_proj = nn.Linear(width, inner, bias=False)
        self.mlp.up_proj = nn.Linear(width, inner, bias=False)
        self.mlp.down_proj = nn.Linear(inner, width, bias=False)
        self.input_layernorm = Norm(width)
        self.post_attention_layernorm = Norm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Next hidden states, and queries and keys of this layer [B, heads, T, 64]."""
        batch, length, width = x.shape
        normed = self.input_layernorm(x)

        def split(linear: nn.Linear) -> Tensor:
            return linear(normed).view(batch, length, self.heads, -1).transpose(1, 2)

        def turn(h: Tensor) -> Tensor:
            one, two = h.chunk(2, -1)
            return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

        q, k = turn(split(self.self_attn.q_proj)), turn(split(self.self_attn.k_proj))
        v = split(self.self_attn.v_proj)
        # Rows are padded on the right only, so the causal mask is all the mask there is.
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.self_attn.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.post_attention_layernorm(x)
        inner = F.silu(self.mlp.gate_proj(normed)) * self.mlp.up_proj(normed)
        return x + self.mlp.down_proj(inner), q, k


class LanguageModel(nn.Module):
    """LlamaForCausalLM with tied embeddings, and the training's own phoneme classifier."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.model.norm = Norm(shape.hidden_size)
        self.phonemes = nn.Linear(shape.hidden_size, len(PHONEMES) + 1)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = math.sqrt(2 * shape.num_hidden_layers) if last else 1.0
                nn.init.normal_(parameter, 0, 0.02 / scale)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Ids [B, T] -> last hidden states, those of the phoneme layer, guided (q, k)."""
        shape = self.shape
        x = self.model.embed_tokens(ids)
        half = torch.arange(0, shape.hidden_size // shape.num_attention_heads, 2)
        rate = shape.rope_theta ** -(half / (2 * len(half)))
        angles = torch.arange(ids.shape[1])[:, None] * rate
        kind = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        x, cos, sin = x.to(kind), angles.cos().to(kind), angles.sin().to(kind)
        guided, middle = [], x
        for index, layer in enumerate(self.model.layers):
            x, q, k = layer(x, cos, sin)
            if index in shape.guided_layers:
                guided.append((q[:, 0], k[:, 0]))
            if index == shape.phoneme_layer:
                middle = x
        return self.model.norm(x), middle, guided

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the whole vocabulary [..., V]."""
        return F.linear(hidden, self.model.embed_tokens.weight)


@dataclass
class Utterance:
    """What a row is made of."""

    text: NDArray[np.int64]
    codes: NDArray[np.int64]
    letters: NDArray[np.int64]
    """Index into ``text`` of the character spoken in each frame."""
    phonemes: NDArray[np.int64]
    words: int = field(default=0)


def read_utterances(teacher: Path, codes: Path) -> list[Utterance]:
    """Everything that has both sound and codes, in the order of the shards."""
    files = [(path, codes / f"{path.stem}.npy") for path in shards(teacher)]
    read = [(*read_shard(path), np.load(other)) for path, other in files if other.exists()]
    spoken = {
        (word.rstrip(".,?!"), said)
        for _, rows, _ in read
        for row in rows
        for word, said in zip(row["text"].split(" "), row["phonemes"], strict=True)
    }
    aligner = Aligner(sorted(spoken))
    tokenizer = tok.make_tokenizer()
    result = []
    for pcm, rows, shard_codes in read:
        labels = frame_labels(rows, len(pcm))
        for row in rows:
            ends = letter_ends(aligner, *(row[k] for k in ("text", "phonemes", "ends", "gaps")))
            ids = tokenizer.encode(row["text"]).ids
            if ends is None or len(ids) != len(row["text"]):
                continue
            part = slice(row["start"], row["start"] + row["frames"])
            spoken_in = np.searchsorted(ends, np.arange(row["frames"]) + 0.5)
            result.append(
                Utterance(
                    np.asarray(ids),
                    shard_codes[part].astype(np.int64) + tok.FIRST_CODE,
                    spoken_in.clip(0, len(ids) - 1),
                    labels[part],
                    len(row["text"].split()),
                )
            )
    return result


Row = tuple[int, ...]


class Batches:
    """Rows of similar length, all from the seed."""

    def __init__(
        self, utterances: list[Utterance], *, seed: int, pairs: float, noise: float
    ) -> None:
        self._utterances = utterances
        self._seed = seed
        self._pairs = pairs
        self._noise = noise
        before, after = tok.prompt_parts(tok.make_tokenizer())
        self._before, self._after = np.asarray(before), np.asarray(after)
        self._space = tok.FIRST_CHARACTER

    def _length(self, row: Row) -> int:
        parts = [self._utterances[i] for i in row]
        chars = sum(len(part.text) for part in parts) + len(parts) - 1
        codes = sum(len(part.codes) for part in parts)
        return len(self._before) + chars + len(self._after) + codes

    def __iter__(self) -> Iterator[list[Row]]:
        """Endless batches of rows, BUDGET tokens each when padded."""
        for epoch in itertools.count():
            rng = np.random.default_rng((self._seed, epoch))
            order = rng.permutation(len(self._utterances))
            for at in range(0, len(order), WINDOW):
                chosen = list(order[at : at + WINDOW])
                rows: list[Row] = []
                while chosen:
                    row: Row = (chosen.pop(),)
                    if chosen and rng.random() < self._pairs:
                        pair = (*row, chosen[-1])
                        if self._length(pair) <= LONGEST:
                            chosen.pop()
                            row = pair
                    if self._length(row) <= LONGEST:
                        rows.append(row)
                rows.sort(key=self._length)
                batches: list[list[Row]] = [[]]
                for row in rows:
                    if self._length(row) * (len(batches[-1]) + 1) > BUDGET:
                        batches.append([])
                    batches[-1].append(row)
                for index in rng.permutation(len(batches)):
                    yield batches[index]

    def arrays(self, rows: list[Row], step: int) -> dict[str, Tensor]:
        """Ids, labels, letters (key index a position should look at, or -1) and phonemes [B, T]."""
        rng = np.random.default_rng((self._seed, 1, step))
        length = max(map(self._length, rows))
        shape = (len(rows), length)
        ids, labels = np.zeros(shape, np.int64), np.full(shape, IGNORE)
        letters, phonemes = np.full(shape, -1), np.full(shape, IGNORE)
        for line, row in enumerate(rows):
            parts = [self._utterances[i] for i in row]
            text, codes, looks, said = [self._before], [], [], []
            offset = len(self._before)
            for index, part in enumerate(parts):
                if index:
                    text.append(np.asarray([self._space]))
                    offset += 1
                text.append(part.text)
                codes.append(part.codes)
                looks.append(part.letters + offset)
                said.append(part.phonemes)
                offset += len(part.text)
            prompt = np.concatenate([*text, self._after])
            speech = np.concatenate(codes)
            first, last = len(prompt), len(prompt) + len(speech)
            ids[line, :first] = prompt
            ids[line, first:last] = self._noisy(speech, rng)
            labels[line, first - 1 : last - 1] = speech
            labels[line, last - 1] = END
            letters[line, first - 1 : last - 1] = np.concatenate(looks)
            letters[line, last - 1] = offset  # the end of the text ends the speech
            phonemes[line, first - 1 : last - 1] = np.concatenate(said)
        names = {"ids": ids, "labels": labels, "letters": letters, "phonemes": phonemes}
        return {name: torch.from_numpy(array) for name, array in names.items()}

    def _noisy(self, codes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Some codes replaced by any other, as many by one a single FSQ step away."""
        codes = codes - tok.FIRST_CODE
        hit = rng.random(len(codes)) < self._noise
        codes = np.where(hit, rng.integers(0, tok.NUM_CODES, len(codes)), codes)
        hit = rng.random(len(codes)) < self._noise
        place = LEVELS[0] ** rng.integers(0, len(LEVELS), len(codes))
        digit = codes // place % LEVELS[0]
        up = np.where(
            digit == 0, 1, np.where(digit == LEVELS[0] - 1, -1, rng.choice([-1, 1], len(codes)))
        )
        return np.where(hit, codes + up * place, codes) + tok.FIRST_CODE


def losses(model: LanguageModel, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cross-entropies of codes, phonemes and (per guided head) letters; share of letters hit."""
    hidden, middle, guided = model(batch["ids"])
    spoken = batch["labels"] != IGNORE
    codes = F.cross_entropy(model.logits(hidden[spoken]).float(), batch["labels"][spoken])
    guess = model.phonemes(middle[spoken]).float()
    phonemes = F.cross_entropy(guess, batch["phonemes"][spoken], ignore_index=IGNORE)
    known = batch["phonemes"][spoken] != IGNORE
    right = (guess.argmax(-1) == batch["phonemes"][spoken])[known].float().mean()
    pulls, hits = [], []
    line, place = spoken.nonzero(as_tuple=True)
    target = batch["letters"][spoken]
    future = torch.triu(torch.ones(batch["ids"].shape[1:] * 2, dtype=torch.bool), 1)
    for q, k in guided:
        scores = ((q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5)[line, place].float()
        scores = scores.masked_fill(future[place], -1e4)
        pulls.append(F.cross_entropy(scores, target))
        hits.append(((scores.argmax(-1) - target).abs() <= 1).float().mean())
    return {
        "codes": codes,
        "phonemes": phonemes,
        "right": right,
        "letters": torch.stack(pulls).mean(),
        "hits": torch.stack(hits).mean(),
    }


def load_first_voice(model: LanguageModel, path: Path) -> None:
    """Go on from an earlier voice (``lm.*`` of its npz): other ids, no chat template."""
    with np.load(path) as data:
        state = {
            name.removeprefix("lm."): torch.tensor(data[name].astype(np.float32))
            for name in data.files
            if name.startswith("lm.")
        }
    old = state.pop("model.embed_tokens.weight")
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        text = tok.FIRST_CHARACTER + len(tok.CHARACTERS)
        table[:text] = old[:text]
        table[tok.FIRST_CODE :] = old[text:]
    missing = model.load_state_dict(state, strict=False)
    if missing.unexpected_keys:
        raise SystemExit(f"{path} does not fit: {missing.unexpected_keys}")


def learning_rate(step: int, arguments: argparse.Namespace) -> float:
    """Share of the full rate: up, level, then down to nothing in a straight line."""
    left = (arguments.steps - step) / max(1, arguments.steps - arguments.decay_from)
    return min(1.0, (step + 1) / arguments.warm) * min(1.0, max(0.01, left))


def average(parameters: list[nn.Parameter], workers: int) -> None:
    """Gradients of all workers, averaged."""
    if workers > 1:
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat)
        flat /= workers
        for parameter, part in zip(
            parameters, flat.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter))


def train(rank: int, arguments: argparse.Namespace) -> None:  # noqa: PLR0912, PLR0915 (one loop)
    """One worker."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    if arguments.workers > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{arguments.out.resolve()}.{os.getppid()}.meet",
            rank=rank,
            world_size=arguments.workers,
            timeout=dt.timedelta(hours=3),
        )
    model = LanguageModel(Shape())
    parameters = list(model.parameters())
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if not (p.dim() == 2 and "layers" in n)]
    # Muon's orthogonalization is a third of a step's work: each worker does its share of matrices.
    shares = [matrices[worker :: arguments.workers] for worker in range(arguments.workers)]
    optimizers: list[tuple[torch.optim.Optimizer, float]] = [
        (torch.optim.Muon(shares[rank], lr=1.0, weight_decay=0.05, momentum=0.95), arguments.muon),
        (torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.95), weight_decay=0.01), arguments.rate),
    ]
    first = 0
    if arguments.out.exists():
        state = torch.load(arguments.out, weights_only=False)
        model.load_state_dict(state["model"])
        if len(state["optimizers"]) == arguments.workers:
            for (optimizer, _), saved in zip(optimizers, state["optimizers"][rank], strict=True):
                optimizer.load_state_dict(saved)
        first = state["step"]
    elif arguments.init:
        load_first_voice(model, arguments.init)
    utterances = read_utterances(arguments.teacher, arguments.codes)
    batches = Batches(utterances, seed=arguments.seed, pairs=arguments.pairs, noise=arguments.noise)
    queue = iter(batches)
    for _ in range(first * arguments.workers):
        next(queue)
    if rank == 0:
        frames = sum(len(u.codes) for u in utterances)
        print(
            f"{len(utterances)} utterances, {frames / 180000:.2f} hours, step {first}", flush=True
        )
    began, tokens, totals = time.monotonic(), 0, []
    for step in range(first, arguments.steps):
        share = learning_rate(step, arguments)
        for optimizer, peak in optimizers:
            optimizer.param_groups[0]["lr"] = peak * share
        rows = [next(queue) for _ in range(arguments.workers)][rank]
        batch = batches.arrays(rows, step * arguments.workers + rank)
        with torch.autocast("cpu", torch.bfloat16):
            numbers = losses(model, batch)
        total = numbers["codes"] + arguments.guide * share * numbers["letters"]
        total = total + arguments.phoneme_weight * share * numbers["phonemes"]
        for optimizer, _ in optimizers:
            optimizer.zero_grad()
        total.backward()
        average(parameters, arguments.workers)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
        exchange(shares)
        totals.append({name: float(value) for name, value in numbers.items()})
        tokens += int((batch["labels"] != IGNORE).sum()) * arguments.workers
        if (step + 1) % 50 == 0 or step + 1 == arguments.steps:
            save(arguments.out, model, optimizers, step + 1)
        if rank == 0 and (step + 1) % 20 == 0:
            means = {k: round(float(np.mean([t[k] for t in totals])), 3) for k in totals[0]}
            speed = tokens / (time.monotonic() - began)
            print(step + 1, means, f"lr {share:.2f}, {speed:.0f} codes/s", flush=True)
            totals = []


def exchange(shares: list[list[nn.Parameter]]) -> None:
    """Every worker gets the matrices that the others have updated."""
    if len(shares) == 1:
        return
    for worker, share in enumerate(shares):
        flat = torch.cat([p.detach().flatten() for p in share])
        dist.broadcast(flat, worker)
        with torch.no_grad():
            for parameter, part in zip(share, flat.split([p.numel() for p in share]), strict=True):
                parameter.copy_(part.view_as(parameter))


def save(path: Path, model: LanguageModel, optimizers: list[Any], step: int) -> None:
    """Model and all workers' optimizers; called by all of them."""
    states = [[optimizer.state_dict() for optimizer, _ in optimizers]]
    if dist.is_initialized():
        gathered = [None] * dist.get_world_size()
        dist.gather_object(states[0], gathered if dist.get_rank() == 0 else None)
        if dist.get_rank():
            return
        states = gathered
    temporary = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizers": states, "step": step}, temporary)
    temporary.replace(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("codes", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--decay-from", type=int, default=0, help="step where the rate goes down")
    parser.add_argument("--warm", type=int, default=100)
    parser.add_argument("--muon", type=float, default=0.02, help="rate of the matrices")
    parser.add_argument("--rate", type=float, default=2e-3, help="rate of everything else")
    parser.add_argument("--guide", type=float, default=0.3, help="weight of the letters")
    parser.add_argument("--phoneme-weight", type=float, default=0.2)
    parser.add_argument("--pairs", type=float, default=0.6, help="share of utterances that pair up")
    parser.add_argument("--noise", type=float, default=0.06)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--init", type=Path, help="npz of an earlier voice to go on from")
    arguments = parser.parse_args()
    if arguments.workers == 1:
        train(0, arguments)
    else:
        torch.multiprocessing.spawn(train, (arguments,), arguments.workers)


if __name__ == "__main__":
    main()
