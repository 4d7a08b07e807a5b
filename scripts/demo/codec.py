"""The small codec: mel encoder (training only), one FSQ codebook, transformers' XCodec2 decoder.

Shipped are ``quantizer.project_out`` and the decoder; the encoder only turns teacher audio into
codes. Three stages, each counted in steps, each resumable from its own checkpoint:

    python -m scripts.demo.codec train  teacher/ codec.pt --steps 2500
    python -m scripts.demo.codec encode teacher/ codec.pt codes/
    python -m scripts.demo.codec polish teacher/ polished.pt --init codec.pt --steps 1500

``train`` fits everything to three spectral losses and a phoneme classifier on the quantized latents
(which keeps the codes about what is said). With ``--decoder earlier.npz`` the decoder is taken from
an earlier voice and kept, so that its language model can be trained on; ``--pairs`` are codes with
their sound, made by that voice, from which the encoder learns the inverse first. ``polish`` keeps
the codes and trains the decoder against a small spectrogram discriminator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Wav2Vec2BertConfig, Xcodec2Config
from transformers.models.xcodec2.modeling_xcodec2 import Xcodec2Decoder, Xcodec2Quantizer

from scripts.demo.teacher import FRAME, read_shard, shards

LEVELS = (4, 4, 4, 4, 4)
NUM_CODES = math.prod(LEVELS)
HIDDEN = 192
LAYERS = 4
PHONEMES = "AIOQWYbdfhijklmnpstuvwzæðŋɑɔəɚɛɜɡɪɹɾʃʊʌʒʔʤʧθᵊᵻTɐɒ"
"""misaki's American phonemes; a phoneme that is not here counts as silence (class 0)."""


def codec_config() -> Xcodec2Config:
    """The decoder's shape: 3.2 M parameters."""
    config = Xcodec2Config(
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 64,
        num_key_value_heads=HIDDEN // 64,
        head_dim=64,
        semantic_model_config=Wav2Vec2BertConfig(
            hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=HIDDEN // 64
        ),
        quantization_dim=2 * HIDDEN,
        quantization_levels=list(LEVELS),
        activation_dropout=0.0,
    )
    config._attn_implementation = "sdpa"
    return config


def mel_filters(n_fft: int, bands: int) -> Tensor:
    """Triangular mel filters [bands, n_fft // 2 + 1] for 16 kHz."""
    edges = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), bands + 2)
    points = 700 * (10 ** (edges / 2595) - 1)
    bins = np.linspace(0, 8000, n_fft // 2 + 1)[None]
    rising = (bins - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    falling = (points[2:, None] - bins) / (points[2:] - points[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(rising, falling)), dtype=torch.float32)


class Residual(nn.Module):
    """Convolution block."""

    def __init__(self, width: int, dilation: int = 1) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.wide = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.back = nn.Conv1d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape in and out, [B, width, T]."""
        return x + self.back(F.silu(self.wide(self.norm(x))))


class Encoder(nn.Module):
    """Log-mel at 100 Hz -> latents at 50 Hz [B, T, 2 * HIDDEN]; sees about 0.2 s to each side."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(80, HIDDEN, 5, padding=2),
            Residual(HIDDEN),
            nn.Conv1d(HIDDEN, HIDDEN, 4, stride=2, padding=1),
            Residual(HIDDEN),
            Residual(HIDDEN, 2),
            Residual(HIDDEN),
            nn.SiLU(),
            nn.Conv1d(HIDDEN, 2 * HIDDEN, 1),
        )
        self.register_buffer("filters", mel_filters(800, 80), persistent=False)
        self.register_buffer("window", torch.hann_window(800), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        """Sound [B, 320 * T] -> latents [B, T, 2 * HIDDEN]."""
        frames = sound.shape[1] // 160
        spectrum = torch.stft(
            sound, 800, 160, window=self.window, pad_mode="constant", return_complex=True
        ).abs()[..., :frames]
        mel = (torch.log(self.filters @ spectrum + 1e-3) + 3) / 2.5
        return self.body(mel).transpose(1, 2)


class Codec(nn.Module):
    """Encoder, quantizer, decoder and the phoneme classifier of the training."""

    def __init__(self) -> None:
        super().__init__()
        config = codec_config()
        self.encoder = Encoder()
        self.quantizer = Xcodec2Quantizer(config)
        self.decoder = Xcodec2Decoder(config)
        self.phonemes = nn.Sequential(
            nn.Conv1d(2 * HIDDEN, 128, 5, padding=2),
            nn.SiLU(),
            nn.Conv1d(128, len(PHONEMES) + 1, 1),
        )

    def encode(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        """Sound [B, 320 * T] -> quantized latents [B, T, 2 * HIDDEN], codes [B, T]."""
        latents, codes = self.quantizer(self.encoder(sound))
        return latents, codes[..., 0]

    def unrounded(self, sound: Tensor) -> Tensor:
        """What the quantizer would round, in its own digits [B, T, len(LEVELS)]."""
        fsq = self.quantizer.quantizer
        return fsq.bound(fsq.bound(self.quantizer.project_in(self.encoder(sound)).float()))

    def digits(self, codes: Tensor) -> Tensor:
        """What ``unrounded`` should be for these codes."""
        fsq = self.quantizer.quantizer
        return fsq.codebook[codes] * (fsq.levels // 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, T] -> sound [B, 320 * T]."""
        return self.decoder(self.quantizer.from_codes(codes[..., None]))[:, 0]


class SpectralLoss(nn.Module):
    """Log-magnitude, log-mel and spectral convergence at three resolutions."""

    RESOLUTIONS = ((256, 64, 40), (512, 128, 60), (1280, 320, 80))

    def __init__(self) -> None:
        super().__init__()
        for n_fft, _, bands in self.RESOLUTIONS:
            self.register_buffer(f"window_{n_fft}", torch.hann_window(n_fft))
            self.register_buffer(f"filters_{n_fft}", mel_filters(n_fft, bands))

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        """Distance of two sounds [B, n], a scalar."""
        total = made.new_zeros(())
        for n_fft, hop, _ in self.RESOLUTIONS:
            window, filters = getattr(self, f"window_{n_fft}"), getattr(self, f"filters_{n_fft}")
            y = torch.stft(made, n_fft, hop, window=window, return_complex=True).abs()
            x = torch.stft(real, n_fft, hop, window=window, return_complex=True).abs()
            even = (1280 / n_fft) ** 0.5  # the same level at every resolution
            log = F.l1_loss(torch.log(y * even + 1e-2), torch.log(x * even + 1e-2))
            mel = F.l1_loss(
                torch.log(filters @ y * even + 1e-2), torch.log(filters @ x * even + 1e-2)
            )
            convergence = torch.linalg.norm(y - x) / (torch.linalg.norm(x) + 1e-3)
            total = total + 0.5 * log + mel + 0.5 * convergence
        return total / len(self.RESOLUTIONS)


class Discriminator(nn.Module):
    """Real or made, from complex spectrograms at two resolutions."""

    RESOLUTIONS = ((512, 128), (1024, 256))

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        shapes = (
            (2, width, (7, 3), (2, 1), (3, 1)),
            (width, width, (7, 3), (2, 1), (3, 1)),
            (width, 2 * width, (5, 3), (2, 1), (2, 1)),
            (2 * width, 2 * width, (5, 3), (2, 1), (2, 1)),
            (2 * width, 1, 3, 1, 1),
        )
        self.nets = nn.ModuleList(
            nn.ModuleList(norm(nn.Conv2d(*shape)) for shape in shapes) for _ in self.RESOLUTIONS
        )
        for n_fft, _ in self.RESOLUTIONS:
            self.register_buffer(f"window_{n_fft}", torch.hann_window(n_fft))

    def forward(self, sound: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        """Per resolution the score map and the feature maps below it."""
        results = []
        for (n_fft, hop), net in zip(self.RESOLUTIONS, self.nets, strict=True):
            window = getattr(self, f"window_{n_fft}")
            spectrum = torch.stft(sound, n_fft, hop, window=window, return_complex=True)
            x = torch.view_as_real(spectrum).permute(0, 3, 1, 2)
            x = x / (x.pow(2).sum(1, keepdim=True) + 1e-4).pow(0.35)
            features = []
            for layer in net[:-1]:
                x = F.leaky_relu(layer(x), 0.2)
                features.append(x)
            results.append((net[-1](x), features))
        return results


def frame_labels(rows: list[dict[str, Any]], samples: int) -> NDArray[np.int64]:
    """Phoneme class of every frame of a shard; 0 is silence. A stress mark is part of its vowel."""
    classes = {phoneme: index + 1 for index, phoneme in enumerate(PHONEMES)}
    labels = np.zeros(samples // FRAME, np.int64)
    for row in rows:
        at = 0.0
        for word, ends, gap in zip(row["phonemes"], row["ends"], row["gaps"], strict=True):
            following = word[1:] + word[-1]
            for mark, vowel, end in zip(word, following, ends, strict=True):
                phoneme = vowel if mark in "ˈˌ" else mark
                first, last = (min(row["frames"], max(0, round(t))) for t in (at, end))
                labels[row["start"] + first : row["start"] + last] = classes.get(phoneme, 0)
                at = end
            at = gap
    return labels


def read_teacher(
    folder: Path, limit: int | None = None
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """All teacher samples end to end and the phoneme class of every frame."""
    read = [read_shard(path) for path in list(shards(folder))[:limit]]
    return (
        np.concatenate([pcm for pcm, _ in read]),
        np.concatenate([frame_labels(rows, len(pcm)) for pcm, rows in read]),
    )


def crops(
    pcm: NDArray[np.int16], labels: NDArray[Any], batch: int, frames: int, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows: sound [batch, 320 * frames] and the labels of their frames."""
    while True:
        starts = rng.integers(0, len(labels) - frames, batch)
        sound = np.stack([pcm[i * FRAME : (i + frames) * FRAME] for i in starts])
        yield (
            torch.from_numpy(sound.astype(np.float32) / 32768),
            torch.from_numpy(np.stack([labels[i : i + frames] for i in starts])).long(),
        )


def cosine(step: int, steps: int, peak: float, warm: int = 50) -> float:
    """Learning rate of a step."""
    return peak * min(1, (step + 1) / warm) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))


def load_decoder(codec: Codec, path: Path) -> None:
    """Decoder and project_out of an earlier voice's weights (``codec.*`` of its npz)."""
    names = {"dec.": "decoder.", "q.": "quantizer."}
    state = {}
    with np.load(path) as data:
        for name in data.files:
            if name.startswith("codec."):
                name_here = name.removeprefix("codec.")
                for old, new in names.items():
                    if name_here.startswith(old):
                        name_here = new + name_here.removeprefix(old)
                state[name_here] = torch.tensor(data[name].astype(np.float32))
    missing = codec.load_state_dict(state, strict=False)
    if missing.unexpected_keys or any(key.startswith("decoder") for key in missing.missing_keys):
        raise SystemExit(f"{path} does not fit: {missing}")


def save(path: Path, **state: Any) -> None:
    """Write a checkpoint whole or not at all."""
    temporary = path.with_suffix(".part")
    torch.save(state, temporary)
    temporary.replace(path)


def train(arguments: argparse.Namespace) -> None:  # noqa: PLR0915 (one loop)
    """Encoder, quantizer and (unless given) decoder."""
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    codec, loss = Codec(), SpectralLoss()
    if arguments.decoder:
        load_decoder(codec, arguments.decoder)
        codec.decoder.requires_grad_(False)
        codec.quantizer.project_out.requires_grad_(False)
    parameters = [p for p in codec.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=arguments.rate, betas=(0.8, 0.98), weight_decay=1e-4
    )
    first = 0
    if arguments.out.exists():
        state = torch.load(arguments.out)
        codec.load_state_dict(state["codec"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    batches = crops(
        *read_teacher(arguments.teacher, arguments.shards), arguments.batch, arguments.frames, rng
    )
    pairs = None
    if arguments.pairs:
        with np.load(arguments.pairs) as data:
            pairs = crops(data["pcm"], data["codes"], arguments.batch, arguments.frames, rng)
    used = torch.zeros(NUM_CODES)
    totals: list[list[float]] = []
    for step in range(first, arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = cosine(step, arguments.steps, arguments.rate)
        numbers = {}
        total = torch.zeros(())
        if pairs is not None and (step < arguments.pair_steps or step % 4 == 0):
            sound, codes = next(pairs)
            sound = sound + 0.002 * torch.randn_like(sound)
            miss = codec.unrounded(sound) - codec.digits(codes)
            total = total + F.mse_loss(miss, torch.zeros_like(miss))
            numbers["digit"] = float((miss.abs() < 0.5).float().mean())
        if step >= arguments.pair_steps or pairs is None:
            sound, label = next(batches)
            with torch.autocast("cpu", torch.bfloat16):
                latents, codes = codec.encode(sound)
                made = codec.decoder(latents)[:, 0]
                guess = codec.phonemes(latents.transpose(1, 2))
            spectral = loss(made.float(), sound)
            phoneme = F.cross_entropy(guess.float(), label)
            total = total + spectral + 0.2 * phoneme
            used = 0.98 * used + torch.bincount(codes.flatten().long(), minlength=NUM_CODES)
            numbers |= {"spectral": float(spectral), "phoneme": float(phoneme)}
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        totals.append([numbers.get(k, math.nan) for k in ("digit", "spectral", "phoneme")])
        if (step + 1) % 50 == 0:
            share = used / used.sum().clamp(min=1)
            perplexity = math.exp(float(-(share * (share + 1e-9).log()).sum()))
            print(step + 1, np.nanmean(totals, 0).round(4).tolist(), round(perplexity), flush=True)
            totals = []
        if (step + 1) % 100 == 0 or step + 1 == arguments.steps:
            save(
                arguments.out,
                codec=codec.state_dict(),
                optimizer=optimizer.state_dict(),
                step=step + 1,
            )


def keep_phases(codec: Codec) -> None:
    """The decoder's head in float32 whatever autocast says: half precision blurs its phases."""
    head = codec.decoder.head
    forward = head.forward

    def precise(hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return forward(hidden.float())

    head.forward = precise


def polish(arguments: argparse.Namespace) -> None:  # noqa: PLR0915 (one loop)
    """Decoder only, with a discriminator: the codes stay what they are."""
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    codec, loss, judge = Codec(), SpectralLoss(), Discriminator()
    codec.load_state_dict(torch.load(arguments.init)["codec"])
    codec.requires_grad_(False)
    codec.decoder.requires_grad_(True)
    codec.quantizer.project_out.requires_grad_(True)
    keep_phases(codec)
    parameters = [p for p in codec.parameters() if p.requires_grad]
    made_by = torch.optim.AdamW(parameters, lr=arguments.rate, betas=(0.8, 0.98), weight_decay=1e-4)
    judged_by = torch.optim.AdamW(judge.parameters(), lr=4e-4, betas=(0.8, 0.98))
    first = 0
    if arguments.out.exists():
        state = torch.load(arguments.out)
        codec.load_state_dict(state["codec"])
        judge.load_state_dict(state["judge"])
        made_by.load_state_dict(state["made_by"])
        judged_by.load_state_dict(state["judged_by"])
        first = state["step"]
    batches = crops(
        *read_teacher(arguments.teacher, arguments.shards), arguments.batch, arguments.frames, rng
    )
    totals: list[list[float]] = []
    for step in range(first, arguments.steps):
        for group in made_by.param_groups:
            group["lr"] = cosine(step, arguments.steps, arguments.rate)
        sound, _ = next(batches)
        with torch.no_grad():
            _, codes = codec.encode(sound)
        with torch.autocast("cpu", torch.bfloat16):
            made = codec.decode(codes.long()).float()
            real_maps, made_maps = judge(sound), judge(made.detach())
        judged = sum(
            F.relu(1 - real.float()).mean() + F.relu(1 + fake.float()).mean()
            for (real, _), (fake, _) in zip(real_maps, made_maps, strict=True)
        ) / len(real_maps)
        judged_by.zero_grad()
        judged.backward()
        judged_by.step()
        total = spectral = loss(made, sound)
        if step >= arguments.judge_from:
            judge.requires_grad_(False)
            with torch.autocast("cpu", torch.bfloat16):
                made_maps = judge(made)
            judge.requires_grad_(True)
            fooled = sum(-fake.float().mean() for fake, _ in made_maps) / len(made_maps)
            alike = sum(
                (one.float() - other.float().detach()).abs().mean()
                for (_, ones), (_, others) in zip(made_maps, real_maps, strict=True)
                for one, other in zip(ones, others, strict=True)
            ) / (4 * len(made_maps))
            total = spectral + 0.05 * fooled + alike
        made_by.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        made_by.step()
        totals.append([float(spectral.detach()), float(judged.detach())])
        if (step + 1) % 50 == 0:
            print(step + 1, np.mean(totals, 0).round(4).tolist(), flush=True)
            totals = []
        if (step + 1) % 100 == 0 or step + 1 == arguments.steps:
            save(
                arguments.out,
                codec=codec.state_dict(),
                judge=judge.state_dict(),
                step=step + 1,
                made_by=made_by.state_dict(),
                judged_by=judged_by.state_dict(),
            )


@torch.no_grad()
def encode(codec: Codec, pcm: NDArray[np.int16], rows: list[dict[str, Any]]) -> NDArray[np.int16]:
    """Codes of a shard's frames; each utterance by itself, similar lengths together."""
    codes = np.zeros(len(pcm) // FRAME, np.int16)
    order = sorted(range(len(rows)), key=lambda i: rows[i]["frames"])
    for at in range(0, len(order), 16):
        group = [rows[i] for i in order[at : at + 16]]
        sound = np.zeros(
            (len(group), (max(row["frames"] for row in group) + 20) * FRAME), np.float32
        )
        for line, row in zip(sound, group, strict=True):
            cut = pcm[row["start"] * FRAME : (row["start"] + row["frames"]) * FRAME]
            line[: len(cut)] = cut / np.float32(32768)
        _, made = codec.encode(torch.from_numpy(sound))
        for line, row in zip(made.numpy(), group, strict=True):
            codes[row["start"] : row["start"] + row["frames"]] = line[: row["frames"]]
    return codes


def load_codec(path: Path) -> Codec:
    """The codec of a checkpoint, for use."""
    codec = Codec().eval()
    codec.load_state_dict(torch.load(path)["codec"])
    return codec


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("train", "polish", "encode"))
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("codes", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--frames", type=int, default=64, help="length of a window, 20 ms each")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shards", type=int, help="use only the first shards")
    parser.add_argument(
        "--decoder", type=Path, help="npz of an earlier voice whose decoder is kept"
    )
    parser.add_argument("--pairs", type=Path, help="npz with codes and pcm made by that decoder")
    parser.add_argument("--pair-steps", type=int, default=0, help="steps on pairs alone")
    parser.add_argument("--init", type=Path, help="codec to polish")
    parser.add_argument("--judge-from", type=int, default=100, help="first step it counts")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.stage == "train":
        train(arguments)
    elif arguments.stage == "polish":
        polish(arguments)
    else:
        codec = load_codec(arguments.out)
        arguments.codes.mkdir(parents=True, exist_ok=True)
        for path in shards(arguments.teacher):
            target = arguments.codes / path.with_suffix(".npy").name
            if not target.exists():
                np.save(target, encode(codec, *read_shard(path)))
                print(target.name, flush=True)


if __name__ == "__main__":
    main()
