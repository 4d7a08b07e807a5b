"""The model card: README.md of a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phoonnx_llasa.presets import Preset, Voices
from scripts.conversion.llasa.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a card tells."""

    title: str
    license: str
    license_id: str
    """Hugging Face's name of the licence."""
    languages: Sequence[str]
    source: str
    base_models: Sequence[str]
    files: Mapping[str, str]
    """File name -> what it is."""
    geometry: Mapping[str, Any]
    """`num_layers`, `num_kv_heads`, `head_dim`, `vocab_size`, `num_codes`, `hop_length`,
    `sample_rate`, `context_length`."""
    voices: Voices | None
    hop_seconds: float
    reports: Iterable[Report]
    samples: Sequence[str] = ()
    """Recordings, as paths in the bundle."""
    more: str = ""
    """Markdown to add."""

    def text(self) -> str:
        """The whole card, markdown with Hugging Face's header."""
        sections = [
            self._header(),
            f"# {self.title}",
            self._introduction(),
            _table(("file", "what"), ((f"`{n}`", what) for n, what in self.files.items())),
            self.more.strip(),
            "## Use",
            _USE,
            "## Voices",
            self._voices(),
            "## Graphs",
            self._graphs(),
        ]
        reports = list(self.reports)
        if reports:
            sections += ["## Checked", _CHECKED, *(self._report(report) for report in reports)]
        return "\n\n".join(section for section in sections if section) + "\n"

    def _header(self) -> str:
        values: dict[str, Any] = {
            "license": self.license_id,
            "language": list(self.languages),
            "pipeline_tag": "text-to-speech",
            "library_name": "phoonnx",
            "base_model": list(self.base_models),
            "tags": ["onnx", "phoonnx", "llasa", "text-to-speech"],
        }
        # JSON values are YAML values, and quote what needs it.
        lines = [f"{name}: {json.dumps(value)}" for name, value in values.items() if value]
        return "\n".join(["---", *lines, "---"])

    def _introduction(self) -> str:
        origin = (
            f"Converted from {', '.join(self.base_models)}."
            if self.base_models
            else f"Weights: {self.source}."
        )
        terms = f"Licence of the weights and of everything here: {self.license}."
        if "NC" in self.license:
            terms += " That is for non-commercial use only."
        return (
            "A speech model in ONNX form for [phoonnx](https://github.com/TigreGotico/phoonnx) "
            f"and phoonnx-llasa; no torch is needed to run it.\n{origin}\n{terms}"
        )

    def _voices(self) -> str:
        lines = []
        presets = self.voices.presets if self.voices else {}
        if not presets:
            lines.append("There are no presets: the model speaks in a voice of its own choice.")
        else:
            names = ("preset", "language", "length", "a person's recording", "seed", "what it says")
            lines.append(_table(names, map(self._preset, presets.values())))
            if all(preset.synthetic for preset in presets.values()):
                lines.append("Every preset was spoken by a machine; no person was recorded.")
        if self.samples:
            links = (f"[{Path(path).stem}]({path})" for path in self.samples)
            lines.append(f"Recordings: {', '.join(links)}.")
        return "\n\n".join(lines)

    def _preset(self, preset: Preset) -> tuple[str, ...]:
        is_default = self.voices is not None and preset.name == self.voices.default_voice
        return (
            f"`{preset.name}`" + (" (default)" if is_default else ""),
            preset.lang,
            f"{len(preset.codes) * self.hop_seconds:.1f} s",
            "no" if preset.synthetic else "yes",
            "" if preset.seed is None else str(preset.seed),
            preset.text.replace("|", "\\|"),
        )

    def _graphs(self) -> str:
        g = self.geometry
        cache = f"float32 [1, {g['num_kv_heads']}, P, {g['head_dim']}]"
        inputs = (
            "`input_ids` int64 [1, S], `attention_mask` int64 [1, P+S], `position_ids` int64 "
            f"[1, S], `past_key_values.i.key` and `.value` {cache} for i = "
            f"0..{g['num_layers'] - 1}"
        )
        outputs = (
            f"`logits` float32 [1, 1, {g['vocab_size']}] of the last token, `present.i.key` and "
            "`.value`"
        )
        language_model = ("language model", inputs, outputs)
        codec = (
            "codec",
            f"`codes` int64 [1, 1, N], 0..{g['num_codes'] - 1}",
            f"sound float32 [1, {g['hop_length']} N] at {g['sample_rate']} Hz",
        )
        return (
            "S new tokens behind P cached ones, N codes.\n\n"
            + _table(("graph", "in", "out"), [language_model, codec])
            + f"\n\nPrompt and codes together are at most {g['context_length']} tokens. "
            "Token ids are found by name in `tokenizer.json`; the prompt stands in `config.json`."
        )

    def _report(self, report: Report) -> str:
        outcome = "passed" if report.passed else "failed: " + "; ".join(report.reasons)
        parts = [f"**{report.title}** ({report.gate}: {outcome})", report.table(), report.note]
        return "\n\n".join(part for part in parts if part)


_USE = """```sh
pip install phoonnx-llasa
phoonnx-llasa say --model PATH/OF/THIS/FOLDER -o hello.wav "Hello there."
```

```python
from phoonnx_llasa import LlasaVoice

voice = LlasaVoice.from_folder("PATH/OF/THIS/FOLDER")
for chunk in voice.synthesize("Hello there."):
    ...
```"""
_CHECKED = (
    "Measured by the gates of the conversion, which does not go on when one fails. "
    "`sha256sum --check SHA256SUMS` says whether the files are as they were."
)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
