"""Checkpoints -> a bundle that was held against them: every stage in one command.

    python -m scripts.conversion.llasa.convert --llm Llasa-1B --codec xcodec2 \
        --work work --out llasa-1b-onnx

Export, dedupe, parity of language model and codec with the checkpoints, presets, recordings,
bundle. A gate that is not passed ends it. Run again, it goes on where it stopped; `--restart`
begins anew. The work folder keeps what the stages made (14 GB for Llasa-1B) and `journal.json` with
the time and the peak memory of each.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from phoonnx_llasa.bundle import LLASA_PROMPT
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.files import read_json
from scripts.conversion.llasa.make_bundle import BundleMismatchError, check_bundle, read_profile
from scripts.conversion.llasa.stages import Record, Stage, StageError, run_stages

logger = logging.getLogger(__name__)

PACKAGE: Final = "scripts.conversion.llasa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is converted, and how."""

    llm: Path
    """Folder of a LLaMA checkpoint with its tokenizer.json."""
    codec: Path
    """Folder of an XCodec2 checkpoint."""
    work: Path
    out: Path
    profile: Path | None = None
    """See `make_bundle.read_profile`; None describes Llasa-1B."""
    form: Literal["fp32", "fp16", "int8"] = "fp32"
    """How weights are stored in the files; they are float32 when computed with."""
    voices: Path | None = None
    """A voices.json to take as it is."""
    presets: bool = True
    """Let the model make presets, unless `voices` has them."""
    wishes: Path | None = None
    """See `make_presets.read_wishes`."""
    samples: bool = True
    variants: bool = False
    """Also build quantized variants and see which of them the model bears."""
    encoder: bool = False
    """Also export the encoder, for presets from recordings."""


def plan(settings: Settings) -> list[Stage]:
    """The stages in order.

    Raises:
        BundleError: the checkpoint's config.json or the profile cannot be read.
        ValueError: the profile has a field that is none.
    """
    checked = _graphs(settings)
    return [*checked.stages, *_bundle(settings, checked)]


@dataclass(frozen=True, slots=True)
class _Checked:
    """Graphs that were held against their checkpoints, and the stages that lead there.

    Each graph has a folder of its own, so that its weights file, if it has one, belongs to it.
    """

    stages: list[Stage]
    model: Path
    codec: Path
    reports: list[Path]


def _graphs(settings: Settings) -> _Checked:
    """Export, parity, and what may come after: quantized variants, smaller storage."""
    work = settings.work.absolute()
    llm, codec = settings.llm.absolute(), settings.codec.absolute()
    profile: Mapping[str, Any] = read_profile(settings.profile) if settings.profile else {}
    reading = (
        "--tokenizer",
        llm / "tokenizer.json",
        "--prompt",
        profile.get("prompt", LLASA_PROMPT),
    )
    separate, deduped, stored = (
        work / name / "model.onnx" for name in ("separate", "deduped", "stored")
    )
    decoder, small = (work / name / "xcodec2_decoder.onnx" for name in ("codec", "stored_codec"))
    parity_llm, parity_codec, variants, gate_stored = (
        work / "reports" / f"{name}.json"
        for name in ("parity_llm", "parity_codec", "gate_quantized", "gate_stored")
    )
    tied = bool(read_json(llm / "config.json").get("tie_word_embeddings", False))
    model = deduped if tied else separate
    checked, home = [llm, model.parent], separate.parent

    stages = [_stage("language model", "export_llm", [llm, separate], [llm], home)]
    if tied:
        stages.append(
            _stage("one embedding", "dedupe_embedding", [separate, deduped], [home], deduped.parent)
        )
    stages += [
        _stage("codec", "export_xcodec2", [codec, decoder], [codec], decoder.parent),
        _stage(
            "parity of the language model",
            "parity_llm",
            [llm, model, *reading, "--json", parity_llm],
            checked,
            parity_llm,
        ),
        _stage(
            "parity of the codec",
            "parity_codec",
            [codec, decoder, "--json", parity_codec],
            [codec, decoder],
            parity_codec,
        ),
    ]
    reports = [parity_llm, parity_codec]
    if settings.variants:
        arguments = [model, *reading, "--json", variants]
        stages.append(_stage("quantized variants", "gate_quantized", arguments, checked, variants))
        reports.append(variants)
    if settings.form != "fp32":
        form = ("--form", settings.form)
        arguments = [model, *reading, "--candidate", stored, "--json", gate_stored]
        stages += [
            _stage(
                "smaller language model",
                "store_weights",
                [model, stored, *form],
                [model.parent],
                stored.parent,
            ),
            _stage(
                "smaller codec", "store_weights", [decoder, small, *form], [decoder], small.parent
            ),
            _stage(
                "gate of the smaller model",
                "gate_quantized",
                arguments,
                [*checked, stored.parent],
                gate_stored,
            ),
        ]
        reports.append(gate_stored)
        model, decoder = stored, small
    return _Checked(stages, model, decoder, reports)


def _bundle(settings: Settings, checked: _Checked) -> Iterator[Stage]:
    """Presets, encoder and recordings where they are wanted, and the bundle."""
    work, tokenizer = settings.work.absolute(), settings.llm.absolute() / "tokenizer.json"
    parts: list[object] = ["--model", checked.model, "--codec", checked.codec]
    parts += ["--tokenizer", tokenizer]
    inputs = [checked.model.parent, checked.codec, tokenizer]

    def take(option: str, path: Path) -> None:
        parts.extend((option, path))
        inputs.append(path)

    def draft(folder: Path) -> Stage:
        arguments = [folder, *parts, "--draft"]
        return _stage(f"{folder.name} draft", "make_bundle", arguments, inputs, folder)

    if settings.profile:
        take("--profile", settings.profile.absolute())
    if settings.voices:
        take("--voices", settings.voices.absolute())
    elif settings.presets:
        silent, voices = work / "silent", work / "voices.json"
        wishes = [settings.wishes.absolute()] if settings.wishes else []
        yield draft(silent)
        arguments = [silent, voices, *(word for path in wishes for word in ("--wishes", path))]
        yield _stage("presets", "make_presets", arguments, [silent, *wishes], voices)
        take("--voices", voices)
    if settings.encoder:
        codec, encoder = settings.codec.absolute(), work / "encoder"
        yield _stage("encoder", "export_xcodec2_encoder", [codec, encoder], [codec], encoder)
        take("--encoder", encoder)
    if settings.samples:
        speaking, samples = work / "speaking", work / "samples"
        yield draft(speaking)
        yield _stage("recordings", "render_samples", [speaking, samples], [speaking], samples)
        take("--samples", samples)
    for report in checked.reports:
        take("--report", report)
    out = settings.out.absolute()
    yield _stage("bundle", "make_bundle", [out, *parts], inputs, out)


def convert(settings: Settings, *, restart: bool = False) -> list[Record]:
    """Run what is not done yet and check the bundle; gives time and memory of every stage.

    Raises:
        StageError: a stage failed, a gate among them.
        LlasaError, BundleMismatchError, ValueError: checkpoint, profile or bundle is not right.
    """
    records = run_stages(plan(settings), settings.work.absolute(), restart=restart)
    check_bundle(settings.out)
    return records


def table(stages: list[Stage], records: list[Record]) -> str:
    """What the stages took, as a markdown table."""
    lines = ["| stage | s | peak GB | wrote MB |", "| --- | --- | --- | --- |"]
    for stage, record in zip(stages, records, strict=True):
        peak = "" if record.peak_bytes is None else f"{record.peak_bytes / 1e9:.1f}"
        size = sum(record.outputs.values()) / 1e6
        lines.append(f"| {stage.name} | {record.seconds:.0f} | {peak} | {size:,.1f} |")
    return "\n".join(lines)


def _stage(
    name: str, module: str, arguments: Sequence[object], inputs: Sequence[Path], output: Path
) -> Stage:
    words = tuple(map(str, arguments))
    return Stage(name, f"{PACKAGE}.{module}", words, tuple(inputs), (output,))


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 when a stage failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--llm", type=Path, required=True, help="checkpoint with tokenizer.json")
    parser.add_argument("--codec", type=Path, required=True, help="XCodec2 checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for what lies between")
    parser.add_argument("--out", type=Path, required=True, help="the bundle to write")
    parser.add_argument("--profile", type=Path, help="JSON: title, license, prompt, ...")
    parser.add_argument("--form", choices=("fp32", "fp16", "int8"), default="fp32")
    parser.add_argument("--voices", type=Path, help="a voices.json to take as it is")
    parser.add_argument("--presets", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--wishes", type=Path, help="JSON: which presets to make")
    parser.add_argument("--samples", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--variants", action="store_true", help="try quantized forms as well")
    parser.add_argument("--encoder", action="store_true", help="export the encoder as well")
    parser.add_argument("--restart", action="store_true", help="run every stage again")
    arguments = vars(parser.parse_args(argv))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    restart = arguments.pop("restart")
    settings = Settings(**arguments)
    try:
        records = convert(settings, restart=restart)
        print(table(plan(settings), records))
    except (LlasaError, BundleMismatchError, StageError, OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
