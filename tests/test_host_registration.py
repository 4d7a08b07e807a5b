"""What registering changes in the host, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phoonnx import engines, model_manager
from phoonnx.engines.llasa import LlasaAdapter as HostAdapter
from phoonnx.model_manager import TTSModelInfo, TTSModelManager

from phoonnx_llasa.host.adapter import LlasaAdapter
from phoonnx_llasa.host.catalogue import INDEX_FILE
from phoonnx_llasa.host.registration import register, unregister

ROOT = Path(__file__).parents[1]

CHANGED = [
    (TTSModelInfo, "load"),
    (TTSModelInfo, "artifact_urls"),
    (TTSModelManager, "voice_index_files"),
    (TTSModelManager, "load_voice"),
    (model_manager, "_resolve"),
    (model_manager, "_cached_path"),
]


@pytest.fixture(autouse=True)
def registered_afterwards() -> Iterator[None]:
    """Whatever a test does, the next one finds the host as an import leaves it."""
    register()
    yield
    register()


@pytest.fixture
def plain_host() -> Iterator[None]:
    """The host as it is without this package; what a test puts there is taken away again."""
    unregister()
    yield
    unregister()


def state() -> list[Any]:
    found = [vars(owner).get(name) for owner, name in CHANGED]
    return [*found, type(engines.get_adapter("llasa"))]


def piper(**fields: Any) -> TTSModelInfo:
    return TTSModelInfo("a/b", "en-US", "https://localhost/m.onnx", engine="piper", **fields)


def test_registering_again_changes_nothing() -> None:
    before = state()
    register()
    assert all(a is b for a, b in zip(state(), before, strict=True))


def test_threads_that_register_at_once_wrap_once(plain_host: None) -> None:
    original = TTSModelInfo.load
    threads = [threading.Thread(target=register) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert TTSModelInfo.load.__wrapped__ is original
    assert not hasattr(original, "__wrapped__")


def test_unregistering_leaves_the_host_as_it_was(plain_host: None) -> None:
    before = state()
    assert before[3] is None
    assert not any("phoonnx_llasa" in repr(getattr(x, "__func__", x)) for x in before)
    register()
    assert not any(a is b for a, b in zip(state(), before, strict=True))
    unregister()
    assert all(a is b for a, b in zip(state(), before, strict=True))


def test_the_engine_is_ours_and_the_others_are_the_hosts() -> None:
    assert type(engines.get_adapter("llasa")) is LlasaAdapter
    names = list(engines.list_engines())
    kinds = {name: type(engines.get_adapter(name)) for name in names}
    unregister()
    assert names == list(engines.list_engines())
    plain = {name: type(engines.get_adapter(name)) for name in names}
    assert plain.pop("llasa") is HostAdapter
    assert all(kinds[name] is plain[name] for name in plain)


def test_other_engines_are_loaded_by_the_hosts_own_method(
    plain_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def load(self: Any, providers: Any = None) -> str:
        calls.append((self, providers))
        return "the host's voice"

    monkeypatch.setattr(TTSModelInfo, "load", load)
    register()
    info = piper()
    assert info.load() == "the host's voice"
    assert info.load(["A"]) == "the host's voice"
    assert info.load(providers=["B"]) == "the host's voice"
    assert calls == [(info, None), (info, ["A"]), (info, ["B"])]
    unregister()
    assert TTSModelInfo.load is load


def test_the_hosts_own_errors_come_through_for_other_engines(
    plain_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: Any, providers: Any = None) -> None:
        raise KeyError("the host's")

    monkeypatch.setattr(TTSModelInfo, "load", load)
    register()
    with pytest.raises(KeyError, match="the host's"):
        piper().load()


def test_files_of_other_schemes_are_resolved_by_the_host(
    plain_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_manager, "_resolve", lambda url, timeout=120: (url, timeout))
    monkeypatch.setattr(model_manager, "_cached_path", lambda url: url)
    register()
    assert model_manager._resolve("https://x/y") == ("https://x/y", 120)
    assert model_manager._resolve("https://x/y", 5) == ("https://x/y", 5)
    assert model_manager._resolve("https://x/y", timeout=7) == ("https://x/y", 7)
    assert model_manager._cached_path(None) is None
    assert model_manager._cached_path("https://x/y") == "https://x/y"


def test_artifacts_of_other_engines_are_the_hosts() -> None:
    urls = {"a": "https://localhost/m.onnx_data", "b": "https://localhost/v.onnx"}
    info = piper(aux_model_urls=urls)
    assert info.artifact_urls() == [info.model_url, *urls.values()]
    info.engine = None
    assert info.artifact_urls() == [info.model_url, *urls.values()]


def test_our_index_comes_last_and_once() -> None:
    files = TTSModelManager.voice_index_files()
    assert files[-1] == INDEX_FILE
    assert files.count(INDEX_FILE) == 1
    unregister()
    assert TTSModelManager.voice_index_files() == files[:-1]


def test_a_subclass_of_the_manager_keeps_its_own_indexes(tmp_path: Path) -> None:
    class Manager(TTSModelManager):
        @classmethod
        def voice_index_path(cls) -> Path:
            return tmp_path

    (tmp_path / "own.json").write_text("{}")
    assert Manager.voice_index_files() == [tmp_path / "own.json", INDEX_FILE]


@pytest.mark.parametrize(("owner", "name"), [c for c in CHANGED if c[1] != "load_voice"])
def test_what_a_host_lacks_is_left_out_with_a_warning(
    plain_host: None,
    owner: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delattr(owner, name)
    register()
    (record,) = [r for r in caplog.records if r.name == "phoonnx_llasa.host.registration"]
    assert name in record.getMessage()
    assert "phoonnx 1." in record.getMessage()
    assert not hasattr(owner, name)
    for other, attribute in CHANGED:
        if attribute != name:
            assert "phoonnx_llasa" in repr(
                vars(getattr(vars(other)[attribute], "__func__", vars(other)[attribute]))
            )
    assert type(engines.get_adapter("llasa")) is LlasaAdapter


def test_a_host_without_the_classes_gets_the_rest(
    plain_host: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(model_manager, "TTSModelManager")
    monkeypatch.delattr(engines, "register_engine")
    register()
    messages = "\n".join(r.getMessage() for r in caplog.records)
    assert "engines.register_engine" in messages
    assert "voice_index_files" in messages
    assert "load_voice" in messages
    assert TTSModelInfo.load.__wrapped__


def test_a_hosts_own_load_voice_stays_and_knows_our_ids_too(
    plain_host: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load_voice(self: Any, voice_id: str, **kwargs: Any) -> tuple[str, Any]:
        return voice_id, kwargs

    def load(self: Any, providers: Any = None) -> tuple[str, Any]:
        return self.voice_id, providers

    monkeypatch.setattr(TTSModelManager, "load_voice", load_voice, raising=False)
    register()
    monkeypatch.setattr(TTSModelInfo, "load", load)
    manager = TTSModelManager(str(tmp_path / "voices.json"))
    assert manager.load_voice("other/voice", a=1) == ("other/voice", {"a": 1})
    loaded = manager.load_voice("llasa/HKUST/zh/1b", providers=["P"])
    assert loaded == ("llasa/HKUST/zh/1b", ["P"])
    monkeypatch.undo()


def test_a_reloaded_host_is_registered_with_anew() -> None:
    code = (
        "import importlib, phoonnx_llasa\n"
        "import phoonnx.model_manager as m\n"
        "old = m.TTSModelInfo; importlib.reload(m)\n"
        "print(hasattr(m.TTSModelManager, 'load_voice'))\n"
        "from phoonnx_llasa.host.registration import register; register()\n"
        "print(hasattr(m.TTSModelManager, 'load_voice'), m.TTSModelInfo is old)\n"
        "print(m.TTSModelManager.voice_index_files()[-1].name)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "True", "False", "phoonnx_llasa.json"]
