"""What each preset of a bundle sounds like: samples/*.wav and samples/manifest.json.

python -m scripts.conversion.llasa.render_samples llasa-1b-onnx samples
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.loudness import apply_gain, normalize_peak, preset_gain
from phoonnx_llasa.presets import NO_PRESET, Preset
from phoonnx_llasa.synthesis import Synthesizer
from phoonnx_llasa.wav import SoundWriter, destination
from scripts.conversion.llasa.files import whole_folder

logger = logging.getLogger(__name__)

MANIFEST: Final = "manifest.json"
#: What is said, by language; English where a language is not among them.
TEXTS: Final = {
    "en": "Good morning. This voice was made by a machine, and it will read whatever you write.",
    "zh": "早上好。这个声音是由机器生成的，你写什么，它就读什么。",
}
WITHOUT_PRESET: Final = "default"


@dataclass(frozen=True, slots=True)
class Sample:
    """One recording, as the manifest lists it."""

    file: str
    preset: str | None
    lang: str
    text: str
    seed: int
    streamed: bool
    """Decoded in blocks, as they come while the model is still speaking."""
    seconds: float
    sample_rate: int
    truncated: bool
    synthetic: bool
    """Of the preset: no person was recorded for it."""
    sha256: str


def render_samples(
    voice: Synthesizer,
    folder: Path,
    *,
    texts: Mapping[str, str] = TEXTS,
    seed: int = 1,
    stream: bool = False,
    command: str | None = None,
) -> list[Sample]:
    """Write a recording of every preset, or of the bare model where there are none.

    The folder appears whole or not at all; an existing one is replaced. `command` is for the
    manifest: what makes it again.
    """
    presets: list[Preset | None] = list(voice.voices.presets.values()) or [None]
    samples = []
    with whole_folder(folder) as fresh:
        for preset in presets:
            samples.append(_render(voice, fresh, preset, texts, seed=seed, stream=stream))
            logger.info("%s: %.1f s", samples[-1].file, samples[-1].seconds)
        manifest = {
            "license": voice.bundle.config.license,
            "source": voice.bundle.config.source,
            **({"command": command} if command else {}),
            "samples": [asdict(sample) for sample in samples],
        }
        content = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (fresh / MANIFEST).write_text(content, encoding="utf-8")
    return samples


def _render(
    voice: Synthesizer,
    folder: Path,
    preset: Preset | None,
    texts: Mapping[str, str],
    *,
    seed: int,
    stream: bool,
) -> Sample:
    name = WITHOUT_PRESET if preset is None else preset.name
    lang = (preset.lang if preset else "") or voice.bundle.config.lang_code
    text = texts.get(lang.split("-")[0], texts["en"])
    options = voice.options(
        {"voice": NO_PRESET if preset is None else name, "seed": seed, "stream": stream}
    )
    blocks = list(voice.synthesize(text, options))
    sound = np.concatenate([block.samples for block in blocks])
    if preset is None:
        sound = normalize_peak(sound)
    else:
        sound = apply_gain(sound, preset_gain(voice.preset_sound(preset)))
    # A preset may have any printable name; a file had better not.
    file = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".wav"
    if (folder / file).exists():
        raise FileExistsError(f"{file}: two presets of this bundle would share the file")
    with destination(folder / file) as output:
        writer = SoundWriter(output, voice.sample_rate)
        writer.write(np.rint(sound * 32767).astype("<i2").tobytes())
        writer.finish()
    return Sample(
        file=file,
        preset=preset.name if preset else None,
        lang=lang,
        text=text,
        seed=seed,
        streamed=stream,
        seconds=round(len(sound) / voice.sample_rate, 3),
        sample_rate=voice.sample_rate,
        truncated=any(block.truncated for block in blocks),
        synthetic=preset.synthetic if preset else True,
        sha256=hashlib.sha256((folder / file).read_bytes()).hexdigest(),
    )


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path, help="gets the recordings and manifest.json")
    parser.add_argument("--text", help="to say instead, in whatever language")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", action="store_true", help="decode in blocks, not in one go")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    texts = dict.fromkeys(TEXTS, arguments.text) if arguments.text else TEXTS
    # A manifest is published: no folder of this machine belongs into it.
    command = None
    if not (arguments.bundle.is_absolute() or arguments.folder.is_absolute()):
        words = ["python", "-m", "scripts.conversion.llasa.render_samples"]
        command = shlex.join([*words, *(sys.argv[1:] if argv is None else argv)])
    try:
        voice = Synthesizer.open(open_bundle(arguments.bundle))
        render_samples(
            voice,
            arguments.folder,
            texts=texts,
            seed=arguments.seed,
            stream=arguments.stream,
            command=command,
        )
    except (LlasaError, OSError) as error:
        parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
