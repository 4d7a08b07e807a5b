"""A small world for every test: checkpoints, bundles and a hub cache with random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

# Imports of torch and of the conversion scripts are in the fixtures: they take seconds, and most
# tests do without.

HUB_REPO = "OpenVoiceOS/phoonnx-llasa"
HUB_SUBFOLDER = "llasa-1b-onnx"
HUB_COMMIT = "0123456789abcdef0123456789abcdef01234567"

#: name -> language, transcript, number of codes (the last is longer than a reference may be)
PRESETS = {
    "en_female_a": ("en", "The rain had stopped before the morning came.", 120),
    "en_male_a": ("en", "Good evening.", 20),
    "zh_female_a": ("zh", "今天的天气很好，我们一起去公园散步吧。", 300),
    "zh_male_a": ("zh", "我看着他们，意气风发地挺直了胸膛，甩了甩那稍显肉感的双臂，轻笑道。", 600),
}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the package keeps between runs is kept for this run of the tests only.

    Presets that whoever runs the tests has made are not seen by them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def small_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `llm` and `xcodec2`, Hugging Face checkpoints of random weights."""
    from scripts.conversion.llasa.random_checkpoints import write_checkpoints

    folder = tmp_path_factory.mktemp("checkpoints")
    write_checkpoints(folder, "tiny", seed=1)
    return folder


@pytest.fixture(scope="session")
def small_graphs(small_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `separate/model.onnx`, `deduped/model.onnx` and `xcodec2_decoder.onnx`."""
    from scripts.conversion.llasa.dedupe_embedding import dedupe_embedding
    from scripts.conversion.llasa.export_llm import export_llm
    from scripts.conversion.llasa.export_xcodec2 import export_codec

    folder = tmp_path_factory.mktemp("graphs")
    separate, deduped = folder / "separate" / "model.onnx", folder / "deduped" / "model.onnx"
    export_llm(small_checkpoints / "llm", separate, external=True)
    dedupe_embedding(separate, deduped)
    export_codec(small_checkpoints / "xcodec2", folder / "xcodec2_decoder.onnx")
    return folder


@pytest.fixture(scope="session")
def small_bundle(
    small_checkpoints: Path, small_graphs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A complete bundle of random weights in the published layout. Read it, do not write to it."""
    from scripts.conversion.llasa.make_bundle import BundleParts, make_bundle
    from scripts.conversion.llasa.random_checkpoints import SIZES

    folder = tmp_path_factory.mktemp("bundle")
    rng = np.random.default_rng(7)
    presets = {
        name: {
            "text": text,
            "lang": lang,
            "codes": rng.integers(0, SIZES["tiny"].num_codes, count).tolist(),
            "synthetic": True,
        }
        for name, (lang, text, count) in PRESETS.items()
    }
    voices = folder / "voices.json"
    voices.write_text(
        json.dumps({"default_voice": "en_female_a", "note": "random", "presets": presets}),
        encoding="utf-8",
    )
    parts = BundleParts(
        model=small_graphs / "deduped" / "model.onnx",
        codec=small_graphs / "xcodec2_decoder.onnx",
        tokenizer=small_checkpoints / "llm" / "tokenizer.json",
        voices=voices,
        source="random weights",
        base_models=(),
    )
    return make_bundle(folder / HUB_SUBFOLDER, parts).model.parent


@pytest.fixture
def hub_cache(small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh hub cache that holds the small bundle in the hub's own layout, and no network.

    `models--OpenVoiceOS--phoonnx-llasa/snapshots/<commit>/llasa-1b-onnx/*` are symbolic links to
    `blobs/*`, as huggingface_hub makes them. HF_HUB_CACHE and HF_HUB_OFFLINE are set for the test
    and for the processes it starts.
    """
    cache = tmp_path / "hub"
    repo = cache / ("models--" + HUB_REPO.replace("/", "--"))
    snapshot = repo / "snapshots" / HUB_COMMIT / HUB_SUBFOLDER
    for folder in (repo / "blobs", repo / "refs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(HUB_COMMIT)
    for index, path in enumerate(sorted(small_bundle.iterdir())):
        blob = repo / "blobs" / f"{index:040x}"
        shutil.copyfile(path, blob)
        (snapshot / path.name).symlink_to(Path("../../../blobs") / blob.name)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # huggingface_hub reads its environment once, on import.
    import huggingface_hub.constants as hub_constants

    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    return cache


@pytest.fixture(scope="session")
def demo_bundle() -> Path:
    """The bundle that the package ships."""
    return Path(__file__).parents[1] / "phoonnx_llasa" / "demo"
