"""Every stage of the built-in voice, one after the other, each only as far as it is not done yet.

    python -m scripts.demo.make work/ --first-voice first_voice_fp16.npz
    python -m scripts.demo.make work/                      # from nothing

The first form is how the shipped weights came about, but for the restarts of their language model
(see docs/demo-voice.md): decoder and language model go on from the first voice. The second needs
nothing but the text and the teacher, and more steps. Stop it when you like and start it again:
stages keep checkpoints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Steps:
    """How long each training stage runs."""

    pairs: int
    codec: int
    polish: int
    lm: int
    decay_from: int


CONTINUED = Steps(pairs=300, codec=900, polish=1200, lm=3800, decay_from=1925)
"""What the shipped voice was given on top of the first voice."""
FROM_NOTHING = Steps(pairs=0, codec=2500, polish=1500, lm=6000, decay_from=3000)
"""Extrapolated: the first voice took 2,500 steps of its language model."""


def stages(work: Path, scowl: Path, first_voice: Path | None, lines: int) -> list[list[str]]:
    """The commands, as arguments of ``python -m``."""
    steps = CONTINUED if first_voice else FROM_NOTHING
    teacher, codes = str(work / "teacher"), str(work / "codes")
    text, codec, lm = (str(work / name) for name in ("text.txt", "codec.pt", "lm.pt"))
    commands = [
        ["text", "--scowl", str(scowl), "--count", "20000", "--out", text],
        ["teacher", text, teacher, "--lines", str(lines)],
    ]
    begin = []
    from_voice = ["--steps", str(steps.lm), "--decay-from", str(steps.decay_from)]
    from_voice += ["--rate", "1.5e-3", "--muon", "0.015", "--warm", "40"]
    if first_voice:
        pairs = str(work / "pairs.npz")
        commands.append(["pairs", str(first_voice), pairs, "--scowl", str(scowl)])
        begin = ["--decoder", str(first_voice), "--pairs", pairs, "--pair-steps", str(steps.pairs)]
        begin += ["--batch", "12"]
        from_voice += ["--init", str(first_voice)]
    commands += [
        ["codec", "train", teacher, codec, "--steps", str(steps.codec), *begin],
        ["codec", "encode", teacher, codec, codes],
    ]
    final, voice = codec, str(work / "voice_fp16.npz")
    silent, bundle = str(work / "silent"), str(work / "bundle")
    if steps.polish:
        final = str(work / "polished.pt")
        polish = ["--init", codec, "--steps", str(steps.polish), "--judge-from", "60"]
        polish += ["--rate", "5e-4", "--batch", "8", "--frames", "32"]
        commands.append(["codec", "polish", teacher, final, *polish])
    commands += [
        ["lm", teacher, codes, lm, *from_voice],
        ["weights", lm, final, voice],
        ["make_bundle", "--weights", voice, "--out", silent],
        ["presets", silent],
        ["make_bundle", "--weights", voice, "--voices", f"{silent}/voices.json", "--out", bundle],
        [
            "evaluate",
            "--work",
            str(work),
            "--codec",
            final,
            "--bundle",
            bundle,
            "--out",
            str(work / "results.json"),
        ],
    ]
    return commands


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for everything that is made")
    parser.add_argument("--scowl", type=Path, default=Path("/usr/share/dict/scowl"))
    parser.add_argument("--first-voice", type=Path, help="weights to go on from")
    parser.add_argument("--lines", type=int, default=20000, help="lines that the teacher speaks")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for module, *options in stages(
        arguments.work, arguments.scowl, arguments.first_voice, arguments.lines
    ):
        print(module, *options, flush=True)
        subprocess.run([sys.executable, "-m", f"scripts.demo.{module}", *options], check=True)


if __name__ == "__main__":
    main()
