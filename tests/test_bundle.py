"""config.json field by field, files that are missing or cut short, the hub's cache."""

import json
import shutil
from pathlib import Path

import pytest

from phoonnx_llasa.bundle import (
    LLASA_PROMPT,
    bundle_from_files,
    fetch_bundle,
    open_bundle,
    parse_config,
)
from phoonnx_llasa.errors import BundleError, ConfigError, DownloadError, GraphError
from phoonnx_llasa.presets import read_voices
from phoonnx_llasa.prompt import SpeechTokenizer

REPO = "OpenVoiceOS/phoonnx-llasa"


@pytest.fixture
def bundle(small_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_bundle, tmp_path / "bundle"))


def test_the_engine_alone_is_enough() -> None:
    config = parse_config({"engine": "llasa"}, where="config.json")
    assert (config.sample_rate, config.hop_length, config.context_length) == (16000, 320, 2048)
    assert config.prompt == LLASA_PROMPT
    assert config.num_codes is None
    assert config.files.codec == "xcodec2_decoder.onnx"
    assert config.license == "CC BY-NC 4.0"


def test_declared_fields_are_read() -> None:
    config = parse_config(
        {
            "engine": "llasa",
            "lang_code": "zh",
            "audio": {"sample_rate": 24000},
            "inference": {"temperature": 0.5},
            "llasa": {
                "files": {"codec": "c.onnx"},
                "context_length": 512,
                "hop_length": 480,
                "num_codes": 1024,
                "prompt": "<|a|>{text}",
                "single_speaker": True,
                "license": "MIT",
                "source": "here",
            },
            "future": {"field": 1},
        },
        where="config.json",
    )
    assert config.lang_code == "zh"
    assert config.sample_rate == 24000
    assert config.inference == {"temperature": 0.5}
    assert config.files.codec == "c.onnx"
    assert config.files.model == "model.onnx"
    assert (config.context_length, config.hop_length, config.num_codes) == (512, 480, 1024)
    assert config.prompt == "<|a|>{text}"
    assert config.single_speaker


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine": "vits"}, "engine"),
        ({"engine": 3}, "engine"),
        ({"lang_code": 1}, "lang_code"),
        ({"audio": []}, "audio"),
        ({"audio": {"sample_rate": "16000"}}, "audio.sample_rate"),
        ({"audio": {"sample_rate": True}}, "audio.sample_rate"),
        ({"audio": {"sample_rate": 0}}, "audio.sample_rate"),
        ({"inference": "fast"}, "inference"),
        ({"llasa": 1}, "llasa"),
        ({"llasa": {"context_length": -1}}, "llasa.context_length"),
        ({"llasa": {"context_length": 2048.5}}, "llasa.context_length"),
        ({"llasa": {"hop_length": "x"}}, "llasa.hop_length"),
        ({"llasa": {"num_codes": 0}}, "llasa.num_codes"),
        ({"llasa": {"prompt": "no place for it"}}, "llasa.prompt"),
        ({"llasa": {"prompt": "{text}{text}"}}, "llasa.prompt"),
        ({"llasa": {"single_speaker": "yes"}}, "llasa.single_speaker"),
        ({"llasa": {"files": ["model.onnx"]}}, "llasa.files"),
        ({"llasa": {"files": {"model": "../../etc/passwd"}}}, "llasa.files.model"),
        ({"llasa": {"files": {"codec": "a\\b.onnx"}}}, "llasa.files.codec"),
        ({"llasa": {"files": {"voices": ""}}}, "llasa.files.voices"),
        ({"llasa": {"files": {"codec": "a" * 5000}}}, "llasa.files.codec"),
        ({"llasa": {"prompt": "{text}\ud800"}}, "llasa.prompt"),
        ({"lang_code": "\ud800"}, "lang_code"),
        ({"llasa": {"context_length": 40}}, "llasa.context_length"),
        ({"llasa": {"context_length": 1 << 20}}, "llasa.context_length"),
    ],
)
def test_a_wrong_field_is_named(change: dict, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"engine": "llasa", **change}, where="here/config.json")
    assert caught.value.field == field
    assert "here/config.json" in str(caught.value)


def test_a_missing_engine_is_named() -> None:
    with pytest.raises(ConfigError, match="'engine'"):
        parse_config({}, where="config.json")


@pytest.mark.parametrize("text", ["", "  \n", "{", "[1, 2", '{"engine": "llasa"', "\ufeff"])
def test_a_config_that_is_no_json_is_an_error_of_its_own(bundle: Path, text: str) -> None:
    (bundle / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=r"config\.json"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.onnx", "model.onnx_data", "xcodec2_decoder.onnx", "tokenizer.json"],
)
def test_a_missing_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["model.onnx", "xcodec2_decoder.onnx", "tokenizer.json"])
def test_an_empty_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(b"")
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        open_bundle(bundle)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_weights_cut_short_are_seen_before_anything_loads(bundle: Path, share: float) -> None:
    weights = bundle / "model.onnx_data"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(GraphError, match=r"model\.onnx_data.*bytes, but model\.onnx needs"):
        open_bundle(bundle)


def test_a_graph_of_garbage_is_an_error_of_its_own(bundle: Path) -> None:
    (bundle / "model.onnx").write_bytes(b"not a graph at all" * 50)
    with pytest.raises(GraphError, match=r"model\.onnx"):
        open_bundle(bundle)


def test_a_bundle_without_voices_opens(bundle: Path) -> None:
    (bundle / "voices.json").unlink()
    assert open_bundle(bundle).voices is None


def test_files_may_lie_in_different_folders(bundle: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    codec = (bundle / "xcodec2_decoder.onnx").rename(elsewhere / "codec.onnx")
    found = bundle_from_files(
        model=bundle / "model.onnx",
        codec=codec,
        tokenizer=bundle / "tokenizer.json",
        voices=elsewhere / "absent.json",
        config=None,
    )
    assert found.codec == codec
    assert found.voices is None
    assert found.config.context_length == 2048


def test_a_path_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a folder"):
        open_bundle(tmp_path / "nowhere")


def test_the_hubs_cache_is_enough(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fetch_bundle(REPO, subfolder="llasa-1b-onnx", local_files_only=True)
    assert found.model.is_symlink()
    assert found.model.parent == found.tokenizer.parent
    assert found.voices is not None


def test_what_the_hub_cannot_give_is_named(hub_cache: Path) -> None:
    with pytest.raises(
        DownloadError, match=r"OpenVoiceOS/phoonnx-llasa/llasa-8b-onnx/config\.json"
    ):
        fetch_bundle(REPO, subfolder="llasa-8b-onnx", local_files_only=True)
    with pytest.raises(DownloadError, match="cannot be fetched"):
        fetch_bundle("no such/repo/at all", local_files_only=True)


def test_a_byte_order_mark_does_no_harm(bundle: Path) -> None:
    for name in ("config.json", "voices.json", "tokenizer.json"):
        text = (bundle / name).read_text(encoding="utf-8")
        (bundle / name).write_text(text, encoding="utf-8-sig")
    opened = open_bundle(bundle)
    assert opened.voices is not None
    assert read_voices(opened.voices, num_codes=256).presets
    SpeechTokenizer(opened.tokenizer)


def test_unknown_files_beside_the_bundle_do_no_harm(bundle: Path) -> None:
    (bundle / "extra.bin").write_bytes(b"\0")
    config = json.loads((bundle / "config.json").read_text())
    config["llasa"]["new_field"] = [1, 2]
    (bundle / "config.json").write_text(json.dumps(config))
    assert open_bundle(bundle).model.name == "model.onnx"
