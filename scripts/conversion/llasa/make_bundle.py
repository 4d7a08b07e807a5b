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
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from phoonnx_llasa.bundle import LLASA_PROMPT, Bundle, open_bundle
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.presets import read_voices
from phoonnx_llasa.prompt import PromptBuilder, SpeechTokenizer
from scripts.conversion.llasa.files import whole_folder
from scripts.conversion.llasa.onnx_store import DATA_SUFFIX, load_graph

logger = logging.getLogger(__name__)

MODEL, CODEC = "model.onnx", "xcodec2_decoder.onnx"
TOKENIZER, VOICES = "tokenizer.json", "voices.json"


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


def make_bundle(folder: Path, parts: BundleParts) -> Bundle:
    """Write the bundle of `parts` to `folder` and open it.

    Large files are hard links where the file system allows. An existing `folder` is replaced.
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
        config = json.dumps(_config(parts, num_codes), indent=2, ensure_ascii=False)
        (fresh / "config.json").write_text(config + "\n", encoding="utf-8")
        (fresh / "README.md").write_text(_card(parts), encoding="utf-8")
        check_bundle(fresh)
    logger.info("wrote %s", folder)
    return open_bundle(folder)


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


def _card(parts: BundleParts) -> str:
    header: dict[str, Any] = {
        "license": parts.license_id,
        "language": list(parts.languages),
        "pipeline_tag": "text-to-speech",
        "library_name": "phoonnx",
        "base_model": list(parts.base_models),
        "tags": ["onnx", "phoonnx", "llasa", "text-to-speech"],
    }
    # JSON values are YAML values, and quote what needs it.
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in header.items() if value)]
    made_from = ", ".join(parts.base_models) or parts.source
    files = {
        MODEL: "language model: text and the codes so far to the next code, with a KV cache; "
        f"its weights may lie in `{MODEL}{DATA_SUFFIX}`",
        CODEC: f"codec: codes to sound, {parts.hop_length} samples a code, {parts.sample_rate} Hz",
        TOKENIZER: "text to tokens",
        "config.json": "names, sizes, prompt and sampling defaults",
    }
    if parts.voices is not None:
        files[VOICES] = "voices: a transcript and its codes each"
    lines += [
        "---",
        "",
        f"# {parts.title}",
        "",
        "A speech model in ONNX form for [phoonnx](https://github.com/TigreGotico/phoonnx).",
        f"Made from {made_from}.",
        f"Licence of the weights: {parts.license}.",
        "",
        "| file | what |",
        "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in files.items()),
    ]
    if parts.card:
        lines += ["", parts.card.strip()]
    return "\n".join(lines) + "\n"


def _take(source: Path, target: Path) -> None:
    """Link or copy a file, and the sidecar that an ONNX graph names with it."""
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file")
    sidecar = source.with_name(source.name + DATA_SUFFIX)
    if sidecar.is_file():
        if sidecar.name != target.name + DATA_SUFFIX:
            raise BundleMismatchError(
                f"{source} names {sidecar.name} as its weights file; export it as {target.name}"
            )
        _link_or_copy(sidecar, target.with_name(sidecar.name))
    _link_or_copy(source, target)


def _link_or_copy(source: Path, target: Path) -> None:
    # A link is as good as a copy: whatever writes these files replaces them, never edits them.
    try:
        os.link(source.resolve(), target)
    except OSError:
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
    parser.add_argument("--lang", default="en", help="language code of the bundle (default: en)")
    parser.add_argument("--license", default="CC BY-NC 4.0", help="licence of the weights")
    parser.add_argument("--license-id", default="cc-by-nc-4.0", help="its name on Hugging Face")
    parser.add_argument(
        "--source", default="HKUSTAudio/Llasa-1B", help="where the weights are from"
    )
    parser.add_argument("--title", default="Llasa-1B for phoonnx", help="title of the model card")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parts = BundleParts(
        model=arguments.model,
        codec=arguments.codec,
        tokenizer=arguments.tokenizer,
        voices=arguments.voices,
        samples=arguments.samples,
        lang_code=arguments.lang,
        license=arguments.license,
        license_id=arguments.license_id,
        source=arguments.source,
        title=arguments.title,
    )
    try:
        make_bundle(arguments.folder, parts)
    except (LlasaError, BundleMismatchError, OSError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
