"""voices.json: broken entries, long references, saving."""

import json
from pathlib import Path

import pytest

from phoonnx_llasa.errors import BundleError, PresetError, UnknownPresetError
from phoonnx_llasa.presets import (
    Preset,
    Voices,
    cut_reference,
    make_preset,
    read_voices,
    write_voices,
)

GOOD = {"text": "Hello there.", "lang": "en", "codes": [1, 2, 3], "synthetic": True, "seed": 7}


def write(path: Path, presets: object, default: object = "good") -> Path:
    path.write_text(json.dumps({"default_voice": default, "presets": presets}))
    return path


def test_presets_are_read(tmp_path: Path) -> None:
    voices = read_voices(write(tmp_path / "voices.json", {"good": GOOD}), num_codes=256)
    assert voices.default_voice == "good"
    assert voices.get(None) == Preset("good", "Hello there.", "en", (1, 2, 3), True, 7)
    assert voices.get("none") is None


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({**GOOD, "codes": [1, 256]}, r'"codes"\[1\] is 256'),
        ({**GOOD, "codes": [-1]}, r'"codes"\[0\] is -1'),
        ({**GOOD, "codes": [1.5]}, r'"codes"\[0\] is 1.5'),
        ({**GOOD, "codes": [True]}, r'"codes"\[0\] is True'),
        ({**GOOD, "codes": []}, '"codes" must be a list'),
        ({**GOOD, "codes": "123"}, '"codes" must be a list'),
        ({k: v for k, v in GOOD.items() if k != "codes"}, '"codes" must be a list'),
        ({k: v for k, v in GOOD.items() if k != "text"}, '"text" must be'),
        ({**GOOD, "text": "   "}, '"text" must be'),
        ({**GOOD, "text": 5}, '"text" must be'),
        ({**GOOD, "text": "a\ud800"}, '"text" must be'),
        ({**GOOD, "lang": 5}, '"lang"'),
        ({**GOOD, "lang": "\ud800"}, '"lang"'),
        ({**GOOD, "lang": "en\x1b[31m"}, '"lang"'),
        ({**GOOD, "lang": "e" * 101}, '"lang"'),
        ({**GOOD, "synthetic": "yes"}, '"synthetic"'),
        ({**GOOD, "seed": "7"}, '"seed"'),
        ([1, 2], "must be an object"),
        (None, "must be an object"),
    ],
)
def test_a_broken_preset_leaves_the_others_alone(
    tmp_path: Path, entry: object, reason: str
) -> None:
    path = write(tmp_path / "voices.json", {"bad": entry, "good": GOOD})
    voices = read_voices(path, num_codes=256)
    assert set(voices.presets) == {"good"}
    with pytest.raises(UnknownPresetError, match=reason) as caught:
        voices.get("bad")
    assert "good" in str(caught.value)


def test_an_unknown_preset_names_what_there_is(tmp_path: Path) -> None:
    voices = read_voices(write(tmp_path / "voices.json", {"good": GOOD}), num_codes=256)
    with pytest.raises(UnknownPresetError, match="'en_femal_a'; available: good, or 'none'"):
        voices.get("en_femal_a")


def test_a_missing_default_is_an_error_when_it_is_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "voices.json", {"good": GOOD}, default="gone")
    voices = read_voices(path, num_codes=256)
    assert voices.get("good") is not None
    with pytest.raises(UnknownPresetError, match="'gone'"):
        voices.get(None)


def test_no_default_means_no_preset(tmp_path: Path) -> None:
    voices = read_voices(write(tmp_path / "voices.json", {"good": GOOD}, None), num_codes=256)
    assert voices.get(None) is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"presets": []}', '{"default_voice": 3, "presets": {}}']
)
def test_a_file_that_holds_no_presets_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "voices.json").write_text(text)
    with pytest.raises(BundleError, match=r"voices\.json"):
        read_voices(tmp_path / "voices.json", num_codes=256)


def test_saved_presets_read_back_the_same(tmp_path: Path) -> None:
    preset = make_preset("mine", text="你好。", lang="zh", codes=[5, 6], num_codes=256, seed=1)
    voices = Voices({"mine": preset}, "mine")
    write_voices(tmp_path / "voices.json", voices, note="made here")
    data = json.loads((tmp_path / "voices.json").read_text(encoding="utf-8"))
    assert data["note"] == "made here"
    assert data["presets"]["mine"]["synthetic"] is True
    assert read_voices(tmp_path / "voices.json", num_codes=256).presets == {"mine": preset}
    assert [path.name for path in tmp_path.iterdir()] == ["voices.json"]


@pytest.mark.parametrize("name", ["", "none", "a" * 101, "line\nbreak"])
def test_names_that_would_not_work_are_refused(name: str) -> None:
    with pytest.raises(PresetError, match="a name has"):
        make_preset(name, text="x", lang="en", codes=[1], num_codes=2)


def test_a_long_reference_loses_words_and_their_codes() -> None:
    words = "one four six nine ten two"  # six words
    preset = Preset("long", " ".join([words] * 10), "en", tuple(range(1000)))
    cut = cut_reference(preset, 500)
    kept = len(cut.text) / len(preset.text)
    assert preset.text.startswith(cut.text)
    assert preset.text[len(cut.text)] == " "  # never inside of a word
    assert 0.4 < kept <= 0.5
    assert cut.codes == tuple(range(len(cut.codes)))
    assert len(cut.codes) <= 500
    assert abs(len(cut.codes) / 1000 - kept) < 0.03


def test_a_long_chinese_reference_is_cut_between_characters() -> None:
    preset = Preset("long", "今天天气很好我们去公园" * 4, "zh", tuple(range(880)))
    cut = cut_reference(preset, 500)
    assert cut.text == preset.text[:25]
    assert len(cut.codes) == 500


def test_a_reference_that_fits_is_left_alone() -> None:
    preset = Preset("short", "Hello.", "en", tuple(range(500)))
    assert cut_reference(preset, 500) is preset


def test_a_reference_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(PresetError, match="cannot be cut"):
        cut_reference(Preset("odd", "x", "en", tuple(range(900))), 500)
