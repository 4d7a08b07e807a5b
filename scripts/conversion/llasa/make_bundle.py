"""Graphs, tokenizer and voices -> one bundle folder that phoonnx-llasa opens.

    python -m scripts.conversion.llasa.make_bundle llasa-1b-onnx --model deduped/model.onnx \
        --codec xcodec2_decoder.onnx --tokenizer Llasa-1B/tokenizer.json --voices voices.json

The folder appears whole or not at all, and only after its parts have been checked against one
another.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import onnx

from phoonnx_llasa.bundle import LLASA_PROMPT, Bundle, open_bundle
from phoonnx_llasa.encoder import ENCODER_FILE
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.files import read_json
from phoonnx_llasa.presets import read_voices
from phoonnx_llasa.prompt import PromptBuilder, SpeechTokenizer
from scripts.conversion.llasa.card import Card
from scripts.conversion.llasa.checksums import SUMS, write_sums
from scripts.conversion.llasa.files import whole_folder
from scripts.conversion.llasa.onnx_store import DATA_SUFFIX, load_graph
from scripts.conversion.llasa.report import read_report

logger = logging.getLogger(__name__)

MODEL, CODEC = "model.onnx", "xcodec2_decoder.onnx"
TOKENIZER, VOICES = "tokenizer.json", "voices.json"


_FILES = frozenset({"model", "codec", "tokenizer", "voices", "samples", "encoder", "reports"})
"""Fields of `BundleParts` that are files, not words about them."""


class BundleMismatchError(Exception):
    """The parts of a bundle do not belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleParts:
    """What goes into a bundle. The defaults are those of HKUSTAudio/Llasa-1B."""

    model: Path
    """Graph of export_llm, deduped or not; its `<name>_data` sidecar comes along."""
    codec: Path
    tokenizer: Path
    voices: Path | None = None
    samples: Path | None = None
    """Folder of recordings to show; copied as samples/."""
    encoder: Path | None = None
    """Folder of export_xcodec2_encoder, for presets from recordings."""
    title: str = "Llasa-1B for phoonnx"
    lang_code: str = "en"
    languages: tuple[str, ...] = ("en", "zh")
    license: str = "CC BY-NC 4.0"
    license_id: str = "cc-by-nc-4.0"
    """Hugging Face's name of the licence, for the model card."""
    source: str = "HKUSTAudio/Llasa-1B"
    base_models: tuple[str, ...] = ("HKUSTAudio/Llasa-1B", "HKUSTAudio/xcodec2")
    sample_rate: int = 16_000
    hop_length: int = 320
    context_length: int = 2048
    prompt: str = LLASA_PROMPT
    single_speaker: bool = False
    inference: Mapping[str, Any] = field(default_factory=dict)
    """Sampling defaults, under the names of `extra_params`."""
    card: str = ""
    """More of the model card, markdown."""
    reports: tuple[Path, ...] = ()
    """Reports of the gates, whose tables go into the card."""


def make_bundle(folder: Path, parts: BundleParts, *, draft: bool = False) -> Bundle:
    """Write the bundle of `parts` to `folder` and open it.

    A `draft` is for the next stage only and has neither card nor checksums, which read everything.
    An existing `folder` is replaced.
    Raises BundleMismatchError or a LlasaError naming the file when something does not fit; then
    `folder` is as it was.
    """
    num_codes = SpeechTokenizer(parts.tokenizer).num_codes
    with whole_folder(folder) as fresh:
        _take(parts.model, fresh / MODEL)
        _take(parts.codec, fresh / CODEC)
        _take(parts.tokenizer, fresh / TOKENIZER)
        if parts.voices is not None:
            _take(parts.voices, fresh / VOICES)
        if parts.samples is not None:
            shutil.copytree(parts.samples, fresh / "samples")
        if parts.encoder is not None:
            _take(parts.encoder / ENCODER_FILE, fresh / ENCODER_FILE)
        config = json.dumps(_config(parts, num_codes), indent=2, ensure_ascii=False)
        (fresh / "config.json").write_text(config + "\n", encoding="utf-8")
        check_bundle(fresh)
        if not draft:
            card = _card(parts, open_bundle(fresh))
            (fresh / "README.md").write_text(card, encoding="utf-8")
            write_sums(fresh)
    logger.info("wrote %s", folder)
    return open_bundle(folder)


def read_profile(path: Path) -> dict[str, Any]:
    """What a bundle says of itself, from a JSON object: the fields of `BundleParts` but its files.

    Raises:
        BundleError: the file cannot be read.
        ValueError: it has a field that is none, or of another type.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: is no JSON object")
    own = {each.name: each.default for each in fields(BundleParts) if each.name not in _FILES}
    profile: dict[str, Any] = {}
    for name, value in values.items():
        if name not in own:
            raise ValueError(f"{path}: {name!r} is none of {', '.join(own)}")
        expected = dict if name == "inference" else type(own[name])
        turned = tuple(value) if expected is tuple and isinstance(value, list) else value
        if type(turned) is not expected:
            raise ValueError(f"{path}: {name!r} is {value!r}, expected {expected.__name__}")
        profile[name] = turned
    return profile


def check_bundle(folder: Path) -> None:
    """Open a bundle and compare its parts with one another.

    Raises a LlasaError for a part that cannot be used and BundleMismatchError for two that do not
    belong together.
    """
    bundle = open_bundle(folder)
    tokenizer = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
    PromptBuilder(
        tokenizer, template=bundle.config.prompt, context_length=bundle.config.context_length
    )
    logits = _shapes(load_graph(bundle.model).graph.output).get("logits")
    if logits is None:
        raise BundleMismatchError(f"{bundle.model}: no output logits, it is no graph of export_llm")
    last = max(tokenizer.end_id, tokenizer.first_code_id + tokenizer.num_codes - 1)
    if logits[-1] is not None and logits[-1] <= last:
        raise BundleMismatchError(
            f"{bundle.model}: {logits[-1]} logits, but {bundle.tokenizer} has a token {last}"
        )
    graph = load_graph(bundle.codec).graph
    codes = _shapes(graph.input).get("codes")
    if codes != [1, 1, None] or len(graph.output) != 1:
        raise BundleMismatchError(f"{bundle.codec}: input codes is {codes}, expected [1, 1, N]")
    entries = _codebook_size(graph)
    if entries is not None and entries != tokenizer.num_codes:
        raise BundleMismatchError(
            f"{bundle.codec}: {entries} codes, but {bundle.tokenizer} has "
            f"{tokenizer.num_codes} speech tokens"
        )
    if bundle.voices is not None:
        voices = read_voices(bundle.voices, num_codes=tokenizer.num_codes)
        for error in voices.broken.values():
            raise error
        voices.get(None)


def _shapes(values: Any) -> dict[str, list[int | None]]:
    return {
        value.name: [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
        for value in values
    }


def _codebook_size(graph: onnx.GraphProto) -> int | None:
    """Rows of the table that the codes are looked up in, when it is a plain initializer."""
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 2}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] in rows:
            return int(rows[node.input[0]])
    return None


def _config(parts: BundleParts, num_codes: int) -> dict[str, Any]:
    files = {"model": MODEL, "codec": CODEC, "tokenizer": TOKENIZER, "voices": VOICES}
    return {
        "engine": "llasa",
        "lang_code": parts.lang_code,
        "audio": {"sample_rate": parts.sample_rate},
        "phoneme_type": "unicode",
        "alphabet": "graphemes",
        "inference": dict(parts.inference),
        "llasa": {
            "files": files,
            "context_length": parts.context_length,
            "hop_length": parts.hop_length,
            "num_codes": num_codes,
            "license": parts.license,
            "source": parts.source,
            "prompt": parts.prompt,
            "single_speaker": parts.single_speaker,
        },
    }


def _card(parts: BundleParts, bundle: Bundle) -> str:
    folder = bundle.model.parent
    outputs = _shapes(load_graph(bundle.model).graph.output)
    cache = outputs["present.0.key"]
    files = {
        MODEL: "language model: text and the codes so far to the next code, with a KV cache",
        MODEL + DATA_SUFFIX: "its weights",
        CODEC: f"codec: codes to sound, {parts.hop_length} samples a code, {parts.sample_rate} Hz",
        TOKENIZER: "text to tokens",
        VOICES: "voices: a transcript and its codes each",
        "config.json": "names, sizes, prompt and sampling defaults; all that a program needs",
        ENCODER_FILE: "recordings to codes, for presets of one's own; not needed to speak",
        "samples": "what the voices sound like, with a manifest",
    }
    num_codes = SpeechTokenizer(bundle.tokenizer).num_codes
    voices = None if bundle.voices is None else read_voices(bundle.voices, num_codes=num_codes)
    recordings = sorted(path.name for path in folder.glob("samples/*.wav"))
    return Card(
        title=parts.title,
        license=parts.license,
        license_id=parts.license_id,
        languages=parts.languages,
        source=parts.source,
        base_models=parts.base_models,
        files={name: what for name, what in files.items() if (folder / name).exists()}
        | {SUMS: "checksums of all of these"},
        geometry={
            "num_layers": sum(name.startswith("present.") for name in outputs) // 2,
            "num_kv_heads": cache[1],
            "head_dim": cache[3],
            "vocab_size": outputs["logits"][-1],
            "num_codes": num_codes,
            "hop_length": parts.hop_length,
            "sample_rate": parts.sample_rate,
            "context_length": parts.context_length,
        },
        voices=voices,
        hop_seconds=parts.hop_length / parts.sample_rate,
        reports=[read_report(path) for path in parts.reports],
        samples=[f"samples/{name}" for name in recordings],
        more=parts.card,
    ).text()


def _take(source: Path, target: Path) -> None:
    """Copy a file, and the sidecar that an ONNX graph names with it.

    Not a hard link: onnx refuses to load weights from a file that has more than one name.
    """
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file")
    sidecar = source.with_name(source.name + DATA_SUFFIX)
    if sidecar.is_file():
        if sidecar.name != target.name + DATA_SUFFIX:
            raise BundleMismatchError(
                f"{source} names {sidecar.name} as its weights file; export it as {target.name}"
            )
        shutil.copyfile(sidecar, target.with_name(sidecar.name))
    shutil.copyfile(source, target)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="the bundle to write")
    parser.add_argument("--model", type=Path, required=True, help="model.onnx")
    parser.add_argument("--codec", type=Path, required=True, help="xcodec2_decoder.onnx")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--voices", type=Path, help="voices.json")
    parser.add_argument("--samples", type=Path, help="folder of recordings to show")
    parser.add_argument("--encoder", type=Path, help="folder of export_xcodec2_encoder")
    parser.add_argument("--report", type=Path, action="append", default=[], help="JSON of a gate")
    parser.add_argument("--profile", type=Path, help="JSON object with any of the words below")
    parser.add_argument("--lang", dest="lang_code", help="language code of the bundle")
    parser.add_argument("--license", help="licence of the weights (default: CC BY-NC 4.0)")
    parser.add_argument("--license-id", help="its name on Hugging Face")
    parser.add_argument("--source", help="where the weights are from")
    parser.add_argument("--title", help="title of the model card")
    parser.add_argument("--draft", action="store_true", help="without card and checksums")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    words = ("lang_code", "license", "license_id", "source", "title")
    try:
        profile = read_profile(arguments.profile) if arguments.profile else {}
        profile |= {name: value for name in words if (value := getattr(arguments, name))}
        parts = BundleParts(
            model=arguments.model,
            codec=arguments.codec,
            tokenizer=arguments.tokenizer,
            voices=arguments.voices,
            samples=arguments.samples,
            encoder=arguments.encoder,
            reports=tuple(arguments.report),
            **profile,
        )
        make_bundle(arguments.folder, parts, draft=arguments.draft)
    except (LlasaError, BundleMismatchError, OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
