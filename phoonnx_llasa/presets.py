"""Voices: voices.json read, checked, cut to size, made and saved."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from phoonnx_llasa.errors import BundleError, PresetError, UnknownPresetError
from phoonnx_llasa.files import atomic_writer, is_text, read_json
from phoonnx_llasa.text import spoken_weight

LOG = logging.getLogger(__name__)

#: The name that asks for no preset at all.
NO_PRESET: Final = "none"

#: A longer reference leaves too little of the 2,048 tokens for the text: 500 codes are 10 s, which
#: is what the checkpoint's authors clone from.
MAX_REFERENCE_CODES: Final = 500

_MAX_NAME_LENGTH: Final = 100
_MAX_TEXT_LENGTH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Preset:
    """One utterance that is replayed as the beginning of every piece: the voice to go on in."""

    name: str
    text: str
    """What the utterance says."""
    lang: str
    codes: tuple[int, ...]
    """Its XCodec2 codes."""
    synthetic: bool = True
    """Made by a machine; False only where a person's recording was encoded with consent."""
    seed: int | None = None
    """The seed it was generated from, where it was."""


@dataclass(frozen=True, slots=True)
class Voices:
    """The presets of one voices.json."""

    presets: Mapping[str, Preset] = field(default_factory=lambda: MappingProxyType({}))
    default_voice: str | None = None
    broken: Mapping[str, PresetError] = field(default_factory=lambda: MappingProxyType({}))
    """Entries that cannot be used, with the reason."""
    own: frozenset[str] = frozenset()
    """Names of those that are the user's own, not the bundle's."""

    def get(self, name: str | None) -> Preset | None:
        """The preset of a name; of the default for None; None where there is none to replay.

        Raises:
            UnknownPresetError: no such preset, or it is broken.
        """
        name = self.default_voice if name is None else name
        if name is None or name == NO_PRESET:
            return None
        if name in self.presets:
            return self.presets[name]
        reason = str(self.broken[name]) if name in self.broken else ""
        raise UnknownPresetError(name, self.presets, reason=reason)


def make_preset(
    name: str,
    *,
    text: str,
    lang: str,
    codes: Iterable[int],
    num_codes: int,
    synthetic: bool = True,
    seed: int | None = None,
) -> Preset:
    """Check the parts of a preset and put them together.

    Raises:
        PresetError: a part is missing, of the wrong type or out of range.
    """
    entry = {"text": text, "lang": lang, "codes": list(codes), "synthetic": synthetic, "seed": seed}
    return _parse_preset(name, entry, num_codes)


def read_voices(path: Path, *, num_codes: int) -> Voices:
    """Read voices.json. A broken preset is reported and left out; the others still load.

    Args:
        num_codes: entries of the codebook; codes must be below it.

    Raises:
        BundleError: the file itself cannot be read or has no object of presets.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("presets", {}), dict):
        raise BundleError(path, 'must be an object with an object "presets" in it')
    presets: dict[str, Preset] = {}
    broken: dict[str, PresetError] = {}
    for name, entry in data.get("presets", {}).items():
        try:
            presets[name] = _parse_preset(name, entry, num_codes)
        except PresetError as error:
            LOG.warning("%s: %s", path, error)
            broken[name] = error
    default = data.get("default_voice")
    if default is not None and not isinstance(default, str):
        raise BundleError(
            path, f'"default_voice" is {default!r}, expected a preset\'s name or null'
        )
    if default is not None and default not in presets and default != NO_PRESET:
        LOG.warning("%s: the default voice %r cannot be used", path, default)
    return Voices(MappingProxyType(presets), default, MappingProxyType(broken))


def write_voices(path: Path, voices: Voices, *, note: str = "") -> None:
    """Save presets as voices.json, whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    entries = {name: preset_entry(preset) for name, preset in voices.presets.items()}
    with atomic_writer(path) as stream:
        stream.write(dump_voices(voices.default_voice, entries, note=note))


def preset_entry(preset: Preset) -> dict[str, Any]:
    """A preset as the object that voices.json has for it."""
    return {
        "text": preset.text,
        "lang": preset.lang,
        "codes": list(preset.codes),
        "synthetic": preset.synthetic,
        "seed": preset.seed,
    }


def dump_voices(default_voice: str | None, entries: Mapping[str, Any], *, note: str = "") -> bytes:
    """The content of a voices.json.

    Args:
        entries: name -> object, as `preset_entry` makes them.
    """
    data: dict[str, Any] = {"default_voice": default_voice}
    if note:
        data["note"] = note
    data["presets"] = dict(entries)
    text = json.dumps(data, ensure_ascii=False, indent=1)
    if not is_text(text):  # a broken entry is kept, and in UTF-8 its surrogates have no place
        text = json.dumps(data, indent=1)
    return text.encode() + b"\n"


def cut_reference(preset: Preset, max_codes: int = MAX_REFERENCE_CODES) -> Preset:
    """Shorten a long reference, its transcript with it.

    A transcript longer than its codes makes the model speak the rest of it aloud, so the text is
    cut at the last word whose share of the speech still fits, and the codes at that word's end.

    Raises:
        PresetError: not even the first word fits.
    """
    if len(preset.codes) <= max_codes:
        return preset
    units: list[str] = re.findall(r"\s*\S+", preset.text)
    if len(units) < 2:
        units = list(preset.text)
    weights = [spoken_weight(unit) for unit in units]
    total = sum(weights)
    kept, spoken = 0, 0.0
    for weight in weights:
        if (spoken + weight) * len(preset.codes) > max_codes * total:
            break
        spoken += weight
        kept += 1
    if kept == 0 or spoken == 0.0:
        raise PresetError(
            preset.name,
            f"{len(preset.codes)} codes are more than the {max_codes} that fit, "
            "and its text cannot be cut; use a shorter utterance",
        )
    num_codes = round(spoken / total * len(preset.codes))
    LOG.warning(
        "voice preset %r has %d codes; only the first %d and the words spoken in them are used",
        preset.name,
        len(preset.codes),
        num_codes,
    )
    return replace(preset, text="".join(units[:kept]).strip(), codes=preset.codes[:num_codes])


def _parse_preset(name: str, entry: object, num_codes: int) -> Preset:
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable() or name == NO_PRESET:
        raise PresetError(
            name, f"a name has 1 to {_MAX_NAME_LENGTH} printable characters and is not 'none'"
        )
    if not isinstance(entry, dict):
        raise PresetError(name, "must be an object")
    text = entry.get("text")
    if (
        not isinstance(text, str)
        or not text.strip()
        or len(text) > _MAX_TEXT_LENGTH
        or not is_text(text)
    ):
        raise PresetError(
            name, f'"text" must be the transcript, 1 to {_MAX_TEXT_LENGTH} characters'
        )
    lang = entry.get("lang", "")
    if not isinstance(lang, str) or len(lang) > _MAX_NAME_LENGTH or not lang.isprintable():
        raise PresetError(name, f'"lang" is {lang!r}, expected a language code')
    synthetic = entry.get("synthetic", True)
    if not isinstance(synthetic, bool):
        raise PresetError(name, f'"synthetic" is {synthetic!r}, expected true or false')
    seed = entry.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise PresetError(name, f'"seed" is {seed!r}, expected an integer or null')
    codes = _parse_codes(name, entry.get("codes"), num_codes)
    return Preset(name, text.strip(), lang, codes, synthetic, seed)


def _parse_codes(name: str, codes: object, num_codes: int) -> tuple[int, ...]:
    if not isinstance(codes, Sequence) or isinstance(codes, str) or not codes:
        raise PresetError(name, '"codes" must be a list of at least one integer')
    for position, code in enumerate(codes):
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < num_codes:
            raise PresetError(
                name, f'"codes"[{position}] is {code!r}, expected 0 to {num_codes - 1}'
            )
    return tuple(codes)
