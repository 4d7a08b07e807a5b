"""Voice ids and the files behind them, as the host sees them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from phoonnx import model_manager
from phoonnx.index_schema import validate_index_file
from phoonnx.model_manager import TTSModelInfo, TTSModelManager

import phoonnx_llasa
from phoonnx_llasa.errors import BundleError, ConfigError, DownloadError, UnknownVoiceError
from phoonnx_llasa.host.catalogue import (
    INDEX_FILE,
    SCHEME,
    cached_bundle,
    entry_bundle,
    find_voice,
    list_voices,
    our_entries,
    package_file,
)

PACKAGE = Path(phoonnx_llasa.__file__).parent
HOSTS_OWN = [
    f"llasa/HKUST/{lang}/{lang}_{voice}"
    for lang in ("en", "zh")
    for voice in ("female_a", "male_a")
]
OURS = ["llasa/HKUST/en/1b", "llasa/HKUST/zh/1b"]
DEMO = "llasa/demo/en/tiny"


@pytest.fixture
def manager(tmp_path: Path) -> TTSModelManager:
    """A manager with an empty registry and its cache in the test's own folder."""
    return TTSModelManager(str(tmp_path / "voices.json"))


@pytest.fixture
def full_manager(manager: TTSModelManager) -> TTSModelManager:
    manager.merge_default_voices()
    return manager


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A web server for self-hosted voices: its address and its folder. Downloads go to tmp_path."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    folder = tmp_path / "www"
    folder.mkdir()
    monkeypatch.setattr(model_manager, "HF_HUB_CACHE", str(tmp_path / "hub"))
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", folder
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def info_of(voice_id: str) -> TTSModelInfo:
    return TTSModelInfo(**our_entries()[voice_id])


def test_the_index_fits_the_hosts_schema() -> None:
    assert validate_index_file(INDEX_FILE) == []
    assert list(our_entries()) == [*OURS, DEMO]


def test_the_licence_stands_in_the_names_of_voices_that_have_one_to_mind() -> None:
    for voice_id in OURS:
        assert "CC BY-NC 4.0" in info_of(voice_id).display_name


def test_no_entry_holds_a_path() -> None:
    assert str(PACKAGE) not in INDEX_FILE.read_text()
    for entry in our_entries().values():
        urls = [entry["model_url"], entry["config_url"], *entry["aux_model_urls"].values()]
        assert all(url.startswith(("https://huggingface.co/", SCHEME)) for url in urls)


def test_our_voices_load_the_same_weights_as_the_hosts_own(full_manager: TTSModelManager) -> None:
    keys = {full_manager.get_voice(voice_id).artifact_key() for voice_id in OURS + HOSTS_OWN}
    assert len(keys) == 1
    assert full_manager.get_voice(DEMO).artifact_key() not in keys


def test_no_language_gets_another_default_voice(
    full_manager: TTSModelManager, tmp_path: Path
) -> None:
    ours = set(our_entries())
    without = TTSModelManager(str(tmp_path / "plain.json"))
    without.voices = {k: v for k, v in full_manager.voices.items() if k not in ours}
    tags = {"en", "en-US", "en-GB", "en-AU", "en-NZ", "zh", "zh-CN", "zh-TW", "zh-HK", "cmn", "yue"}
    tags |= {tag for tag in full_manager.supported_langs if tag.split("-")[0] in {"en", "zh", "ja"}}
    for tag in sorted(tags):
        mixed, plain = full_manager.get_lang_voices(tag), without.get_lang_voices(tag)
        assert bool(mixed) == bool(plain), tag
        assert [v.voice_id for v in mixed[:1]] == [v.voice_id for v in plain[:1]], tag


def test_an_entry_survives_the_hosts_cache(full_manager: TTSModelManager) -> None:
    full_manager.save()
    again = TTSModelManager(full_manager.cache.path)
    again.load()
    for voice_id in [*OURS, DEMO]:
        assert again.get_voice(voice_id) == full_manager.get_voice(voice_id)
        assert again.get_voice(voice_id).engine.value == "llasa"


def test_files_of_the_package_have_urls() -> None:
    url = f"{SCHEME}host/voice_index/phoonnx_llasa.json"
    assert package_file(url) == INDEX_FILE
    assert model_manager._resolve(url) == INDEX_FILE
    assert model_manager._cached_path(url) == INDEX_FILE
    assert model_manager._file_bytes(url) == INDEX_FILE.stat().st_size


@pytest.mark.parametrize(
    "path",
    [
        "",
        "../pyproject.toml",
        "demo/../../pyproject.toml",
        "demo/..",
        "/etc/passwd",
        "//etc/passwd",
        "demo//x",
        "demo\\..\\x",
        "C:/windows",
        ".git",
        "demo/.hidden",
        "demo/model.onnx?download=true",
        "demo/model.onnx\n",
        "demö/x",
    ],
)
def test_a_url_cannot_lead_out_of_the_package(path: str) -> None:
    with pytest.raises(BundleError, match="names no file of the phoonnx-llasa package"):
        package_file(SCHEME + path)
    assert model_manager._cached_path(SCHEME + path) is None


def test_a_missing_file_of_the_package_counts_as_not_published() -> None:
    url = f"{SCHEME}demo/model.onnx_nothing"
    with pytest.raises(LocalEntryNotFoundError, match=r"model\.onnx_nothing"):
        model_manager._resolve(url)
    assert isinstance(LocalEntryNotFoundError(""), model_manager._NO_SUCH_FILE)
    assert model_manager._cached_path(url) is None


def test_the_registry_is_looked_at_first(full_manager: TTSModelManager) -> None:
    mine = TTSModelInfo(OURS[0], "en-US", "https://localhost/model.onnx", engine="llasa")
    full_manager.voices[OURS[0]] = mine
    assert find_voice(full_manager, OURS[0]) is mine


@pytest.mark.parametrize("voice_id", [*OURS, DEMO, *HOSTS_OWN])
def test_llasa_voices_are_found_without_a_registry(manager: TTSModelManager, voice_id: str) -> None:
    assert find_voice(manager, voice_id).voice_id == voice_id
    assert manager.voices == {}


def test_any_voice_of_the_host_is_found_as_the_host_merges_it(
    manager: TTSModelManager, tmp_path: Path
) -> None:
    merged = TTSModelManager(str(tmp_path / "merged.json"))
    merged.merge_default_voices()
    some = sorted(merged.voices)[:: max(1, len(merged.voices) // 25)]
    assert len(some) > 20
    for voice_id in some:
        assert find_voice(manager, voice_id) == merged.get_voice(voice_id)
    assert manager.voices == {}


def test_of_two_indexes_the_later_one_counts(
    manager: TTSModelManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for number in (1, 2):
        entry = {"voice_id": "x", "lang": "en", "model_url": f"https://localhost/{number}"}
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps({"x": entry, f"only{number}": {**entry, "lang": "de"}}))
    monkeypatch.setattr(TTSModelManager, "voice_index_files", classmethod(lambda cls: paths))
    assert find_voice(manager, "x").model_url == "https://localhost/2"
    assert find_voice(manager, "only1").lang == "de"
    manager.merge_default_voices()
    assert manager.get_voice("x").model_url == "https://localhost/2"


def test_a_broken_index_or_entry_does_not_hide_the_others(
    manager: TTSModelManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = {"voice_id": "x", "lang": "en", "model_url": "https://localhost/good"}
    contents = [{"x": good}, {"x": {**good, "engine": "no such engine"}}, [1], "{not JSON"]
    paths = []
    for number, content in enumerate(contents):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.setattr(TTSModelManager, "voice_index_files", classmethod(lambda cls: paths))
    assert find_voice(manager, "x").model_url == "https://localhost/good"
    assert "3.json" in caplog.text
    assert "no such engine" in caplog.text


def test_a_voice_that_is_only_in_the_cache_on_disk_is_found(manager: TTSModelManager) -> None:
    mine = TTSModelInfo("my/voice", "en-US", "https://localhost/model.onnx", engine="llasa")
    manager.add_voice(mine)
    manager.cache.store()
    again = TTSModelManager(manager.cache.path)
    assert again.voices == {}
    assert find_voice(again, "my/voice") == mine


@pytest.mark.parametrize(
    ("wrong", "close"),
    [("llasa/HKUST/en/1B", OURS[0]), ("llasa/HKUST/zh", OURS[1]), ("lasa/demo/en/tiny", DEMO)],
)
def test_an_unknown_voice_is_refused_with_the_ones_that_are_close(
    manager: TTSModelManager, wrong: str, close: str
) -> None:
    with pytest.raises(UnknownVoiceError, match=rf"unknown voice '{wrong}'.*{close}"):
        manager.load_voice(wrong)
    with pytest.raises(UnknownVoiceError, match="phoonnx-voices list-available"):
        manager.load_voice("@@@@@")


def test_an_entry_is_found_in_the_hub_cache(hub_cache: Path) -> None:
    bundle, params = entry_bundle(info_of(OURS[1]))
    snapshot = hub_cache / "models--OpenVoiceOS--phoonnx-llasa" / "snapshots"
    for path in (bundle.model, bundle.codec, bundle.tokenizer, bundle.voices):
        assert path is not None
        assert path.is_relative_to(snapshot)
    assert params["voice"] == "zh_female_a"
    assert cached_bundle(info_of(OURS[1])) == bundle


def test_an_entry_without_aux_files_gets_the_ones_beside_its_model(hub_cache: Path) -> None:
    expected, _ = entry_bundle(info_of(OURS[0]))
    for aux in (None, {}, {"codec_decoder_path": None}):
        fields = {**our_entries()[OURS[0]], "aux_model_urls": aux}
        bundle, _ = entry_bundle(TTSModelInfo(**fields))
        assert bundle == expected
    assert cached_bundle(TTSModelInfo(**{**fields, "aux_model_urls": None})) == expected


def test_nothing_cached_and_no_network_is_a_clear_error(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    assert cached_bundle(info_of(OURS[0])) is None
    with pytest.raises(DownloadError, match=OURS[0]):
        entry_bundle(info_of(OURS[0]))


@pytest.mark.parametrize("name", ["model.onnx_data", "tokenizer.json", "xcodec2_decoder.onnx"])
def test_a_cache_that_lacks_a_file_is_a_clear_error(hub_cache: Path, name: str) -> None:
    (link,) = hub_cache.rglob(f"snapshots/*/llasa-1b-onnx/{name}")
    link.unlink()
    assert cached_bundle(info_of(OURS[0])) is None
    with pytest.raises(DownloadError, match=OURS[0]):
        entry_bundle(info_of(OURS[0]))


def test_self_hosted_files_come_from_their_own_server(
    server: tuple[str, Path], small_bundle: Path
) -> None:
    address, folder = server
    shutil.copytree(small_bundle, folder / "voice")
    info = TTSModelInfo(
        "my/llasa",
        "en-GB",
        f"{address}/voice/model.onnx",
        config_url=f"{address}/voice/config.json",
        engine="llasa",
    )
    assert cached_bundle(info) is None
    bundle, params = entry_bundle(info)
    assert set(params) == {"codec_decoder_path", "tokenizer_path", "voices_path"}
    assert bundle.model.read_bytes() == (small_bundle / "model.onnx").read_bytes()
    assert bundle.voices is not None
    assert cached_bundle(info) == bundle
    (folder / "voice").rename(folder / "gone")
    assert entry_bundle(info)[0] == bundle


def test_file_names_of_the_entrys_own_config_are_followed_and_voices_may_be_missing(
    server: tuple[str, Path], small_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, folder = server
    for path in small_bundle.iterdir():
        if path.is_file() and path.name != "voices.json":
            shutil.copyfile(path, folder / path.name)
    (folder / "tokenizer.json").rename(folder / "words.json")
    config = json.loads((small_bundle / "config.json").read_text())
    config["llasa"]["files"] = {"tokenizer": "words.json"}
    (folder / "config.json").write_text(json.dumps(config))
    urls = {"model_url": f"{address}/model.onnx", "config_url": f"{address}/config.json"}
    caplog.set_level("INFO")
    bundle, _ = entry_bundle(TTSModelInfo("my/llasa", "en", engine="llasa", **urls))
    assert bundle.tokenizer.name == "words.json"
    assert bundle.voices is None
    assert "my/llasa has no voice presets" in caplog.text


def test_a_wrong_config_is_reported_before_anything_is_downloaded(
    server: tuple[str, Path],
) -> None:
    address, folder = server
    (folder / "config.json").write_text('{"engine": "llasa", "audio": null, "llasa": 3}')
    urls = {"model_url": f"{address}/model.onnx", "config_url": f"{address}/config.json"}
    with pytest.raises(ConfigError, match="'llasa' is 3"):
        entry_bundle(TTSModelInfo("my/llasa", "en", engine="llasa", **urls))


def test_a_query_stays_on_the_urls_beside_a_model(hub_cache: Path) -> None:
    fields = {**our_entries()[OURS[0]], "aux_model_urls": {}}
    fields["model_url"] += "?download=true"
    assert entry_bundle(TTSModelInfo(**fields))[0] == entry_bundle(info_of(OURS[0]))[0]


def test_the_weights_are_measured_once(hub_cache: Path, small_bundle: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in small_bundle.iterdir() if path.is_file()}
    names = ("model.onnx", "model.onnx_data", "xcodec2_decoder.onnx", "tokenizer.json")
    expected = sum(sizes[name] for name in (*names, "voices.json"))
    manager = TTSModelManager(str(hub_cache / "voices.json"))
    for voice_id in (OURS[0], HOSTS_OWN[0]):
        assert find_voice(manager, voice_id).disk_size() == expected


def test_voices_are_listed_with_licence_and_state(
    hub_cache: Path, full_manager: TTSModelManager
) -> None:
    listed = {voice.voice_id: voice for voice in list_voices()}
    assert set(listed) == {*OURS, DEMO, *HOSTS_OWN}
    for voice_id in (*OURS, *HOSTS_OWN):
        assert listed[voice_id].downloaded
        assert listed[voice_id].license == "CC BY-NC 4.0"
        assert listed[voice_id].lang == ("zh-CN" if "/zh/" in voice_id else "en-US")
    assert listed[DEMO].downloaded
    full_manager.add_voice(TTSModelInfo("my/llasa", "en", "https://localhost/m", engine="llasa"))
    more = {voice.voice_id: voice for voice in list_voices(full_manager)}
    assert set(more) == {*listed, "my/llasa"}
    assert not more["my/llasa"].downloaded
