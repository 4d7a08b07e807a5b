"""From parts to a folder that opens, or to a reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from phoonnx_llasa.bundle import LLASA_PROMPT, open_bundle
from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.presets import read_voices
from phoonnx_llasa.prompt import SpeechTokenizer
from scripts.conversion.llasa.checksums import check_sums
from scripts.conversion.llasa.make_bundle import (
    BundleMismatchError,
    BundleParts,
    main,
    make_bundle,
    read_profile,
)
from scripts.conversion.llasa.random_checkpoints import SIZES, make_tokenizer
from scripts.conversion.llasa.report import Report


@pytest.fixture
def parts(small_bundle: Path) -> BundleParts:
    return BundleParts(
        model=small_bundle / "model.onnx",
        codec=small_bundle / "xcodec2_decoder.onnx",
        tokenizer=small_bundle / "tokenizer.json",
        voices=small_bundle / "voices.json",
        source="random weights",
        license="Apache-2.0",
        license_id="apache-2.0",
        base_models=(),
        inference={"temperature": 0.7, "top_k": 20},
        lang_code="zh",
        title="A test's bundle",
        card="Nothing to hear here.",
    )


def test_a_bundle_opens_as_it_was_described(parts: BundleParts, tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    (recordings / "one.wav").write_bytes(b"RIFF")
    folder = tmp_path / "bundle"
    bundle = make_bundle(folder, dataclasses.replace(parts, samples=recordings))
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "model.onnx",
        "model.onnx_data",
        "samples",
        "tokenizer.json",
        "voices.json",
        "xcodec2_decoder.onnx",
    ]
    assert (folder / "samples" / "one.wav").read_bytes() == b"RIFF"
    config = bundle.config
    assert (config.lang_code, config.num_codes, config.hop_length) == ("zh", 256, 320)
    assert (config.license, config.source) == ("Apache-2.0", "random weights")
    assert config.inference == {"temperature": 0.7, "top_k": 20}
    assert config.prompt == LLASA_PROMPT
    assert open_bundle(folder) == bundle
    onnxruntime.InferenceSession(str(bundle.model))
    assert bundle.voices is not None
    assert list(read_voices(bundle.voices, num_codes=256).presets) == [
        "en_female_a",
        "en_male_a",
        "zh_female_a",
        "zh_male_a",
    ]


def test_config_json_is_what_the_host_reads(parts: BundleParts, tmp_path: Path) -> None:
    make_bundle(tmp_path / "bundle", parts)
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["engine"] == "llasa"
    assert config["audio"] == {"sample_rate": 16_000}
    assert (config["phoneme_type"], config["alphabet"]) == ("unicode", "graphemes")
    assert config["llasa"]["files"] == {
        "model": "model.onnx",
        "codec": "xcodec2_decoder.onnx",
        "tokenizer": "tokenizer.json",
        "voices": "voices.json",
    }


def test_the_model_card_tells_what_it_is(parts: BundleParts, tmp_path: Path) -> None:
    report = tmp_path / "parity.json"
    figures = {"prompt": "en", "prefill max": 4.1e-5, "greedy": "48/48"}
    Report("parity_llm", "Logits against transformers", [figures]).write(report)
    changed = dataclasses.replace(
        parts, reports=(report,), license="CC BY-NC 4.0", base_models=("HKUSTAudio/Llasa-1B",)
    )
    make_bundle(tmp_path / "bundle", changed)
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert card.startswith('---\nlicense: "apache-2.0"\n')
    assert "# A test's bundle\n" in card
    assert "Converted from HKUSTAudio/Llasa-1B." in card
    assert "CC BY-NC 4.0. That is for non-commercial use only." in card
    assert "| `voices.json` |" in card
    assert "Nothing to hear here.\n" in card
    assert "| `en_female_a` (default) | en | 2.4 s | no |  | The rain had stopped" in card
    assert "no person was recorded" in card
    assert "float32 [1, 2, P, 16] for i = 0..1 | `logits` float32 [1, 1, 792]" in card
    assert "| prompt | prefill max | greedy |\n| --- | --- | --- |\n" in card
    assert "\n| en | 4.1e-05 | 48/48 |\n" in card
    assert "parity_llm: passed" in card


def test_a_card_without_presets_and_reports_says_so(parts: BundleParts, tmp_path: Path) -> None:
    make_bundle(tmp_path / "bundle", dataclasses.replace(parts, voices=None))
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "There are no presets" in card
    assert "Weights: random weights." in card
    assert "## Checked" not in card
    assert "voices.json" not in card


def test_checksums_are_those_of_every_file(parts: BundleParts, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    make_bundle(folder, parts)
    assert check_sums(folder) == []
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    assert f"{digest}  config.json" in lines
    assert len(lines) == len(list(folder.iterdir())) - 1

    (folder / "config.json").unlink()
    (folder / "stray").write_text("here")
    (folder / "README.md").write_text("changed")
    assert check_sums(folder) == [
        "config.json: is missing",
        "stray: is not in the list",
        "README.md: was changed",
    ]
    (folder / "SHA256SUMS").write_text("nonsense")
    assert check_sums(folder) == [f"{folder}/SHA256SUMS: line 1 is not a checksum and a name"]
    (folder / "SHA256SUMS").unlink()
    assert check_sums(folder) == ["there is no SHA256SUMS"]


def test_a_profile_says_what_the_bundle_is(parts: BundleParts, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"title": "T", "languages": ["en"], "inference": {"top_k": 5}}))
    main(
        [
            str(tmp_path / "bundle"),
            *("--model", str(parts.model), "--codec", str(parts.codec)),
            *("--tokenizer", str(parts.tokenizer)),
            *("--profile", str(profile), "--title", "Wins"),
        ]
    )
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.config.inference == {"top_k": 5}
    assert "# Wins\n" in (tmp_path / "bundle" / "README.md").read_text()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "is no JSON object"),
        ({"titel": "T"}, "'titel' is none of title, "),
        ({"context_length": "long"}, "'context_length' is 'long', expected int"),
        ({"languages": "en"}, "'languages' is 'en', expected tuple"),
        ({"model": "m.onnx"}, "'model' is none of"),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, values: object, reason: str) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=reason):
        read_profile(tmp_path / "profile.json")


def test_without_voices_the_model_invents_speakers(parts: BundleParts, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", dataclasses.replace(parts, voices=None))
    assert bundle.voices is None


def test_an_older_bundle_is_replaced_as_a_whole(parts: BundleParts, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "leftover.txt").write_text("old")
    make_bundle(folder, parts)
    assert not (folder / "leftover.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def write_tokenizer(path: Path, levels: tuple[int, ...]) -> Path:
    make_tokenizer(dataclasses.replace(SIZES["tiny"], levels=levels)).save(str(path))
    return path


def write_voices(path: Path, default: str, codes: list[int]) -> Path:
    preset = {"text": "Hello.", "lang": "en", "codes": codes}
    path.write_text(json.dumps({"default_voice": default, "presets": {"a": preset}}))
    return path


BREAK = {
    "fewer speech tokens than codes": (
        lambda tmp: {"tokenizer": write_tokenizer(tmp / "t.json", (4, 4, 4)), "voices": None},
        "256 codes, but .* has 64 speech tokens",
    ),
    "more tokens than logits": (
        lambda tmp: {"tokenizer": write_tokenizer(tmp / "t.json", (4,) * 5)},
        "792 logits, but .* has a token 1559",
    ),
    "a graph with a sidecar as codec": (
        lambda tmp: {"codec": "model"},
        "export it as xcodec2_decoder.onnx",
    ),
    "a codec as model": (lambda tmp: {"model": "codec"}, "no output logits"),
    "a code out of range": (
        lambda tmp: {"voices": write_voices(tmp / "v.json", "a", [1, 256])},
        "is 256, expected 0 to 255",
    ),
    "no such default voice": (
        lambda tmp: {"voices": write_voices(tmp / "v.json", "b", [1, 2])},
        "unknown voice preset 'b'",
    ),
    "a prompt without text": (lambda tmp: {"prompt": "no"}, "a template with {text} in it"),
    "a prompt with an unknown token": (
        lambda tmp: {"prompt": "<|none|>{text}"},
        r"has no token '<\|none\|>'",
    ),
    "a missing file": (lambda tmp: {"codec": tmp / "no.onnx"}, "no such file"),
}


@pytest.mark.parametrize("case", BREAK)
def test_parts_that_do_not_fit_leave_the_old_bundle(parts, tmp_path: Path, case: str) -> None:
    change, reason = BREAK[case]
    changes = {
        name: getattr(parts, value) if value in {"model", "codec"} else value
        for name, value in change(tmp_path).items()
    }
    folder = tmp_path / "out" / "bundle"
    folder.mkdir(parents=True)
    (folder / "old").write_text("old")
    with pytest.raises((BundleMismatchError, LlasaError, OSError), match=reason):
        make_bundle(folder, dataclasses.replace(parts, **changes))
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]
    assert [path.name for path in folder.iterdir()] == ["old"]


def test_the_command_makes_a_bundle(parts: BundleParts, tmp_path: Path) -> None:
    arguments = {
        "--model": parts.model,
        "--codec": parts.codec,
        "--tokenizer": parts.tokenizer,
        "--voices": parts.voices,
        "--license": "CC BY-NC 4.0",
    }
    main([str(tmp_path / "bundle"), *(str(each) for pair in arguments.items() for each in pair)])
    assert open_bundle(tmp_path / "bundle").config.license == "CC BY-NC 4.0"


def test_the_command_says_what_is_wrong(parts, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(
            [
                str(tmp_path / "bundle"),
                *("--model", str(tmp_path / "none.onnx")),
                *("--codec", str(parts.codec)),
                *("--tokenizer", str(parts.tokenizer)),
            ]
        )
    assert exit_status.value.code == 1
    assert "none.onnx: no such file" in capsys.readouterr().err


def test_the_tokenizer_has_llasa_geometry(small_bundle: Path) -> None:
    tokenizer = SpeechTokenizer(small_bundle / "tokenizer.json")
    assert (tokenizer.num_codes, tokenizer.first_code_id) == (256, 536)
    assert tokenizer.end_id == 512 + 16 + 5
    for text in (
        "Dealing with family secrets is never easy.",
        "今天的天气很好，我们一起去公园散步吧。",
    ):
        ids = tokenizer.encode_text(text)
        assert np.array(ids).max() < 512
        assert len(ids) > 5
