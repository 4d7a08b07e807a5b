"""Weights that stay in their graph's own file."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from phoonnx_llasa import codec as codec_module
from phoonnx_llasa.codec import open_codec
from phoonnx_llasa.errors import GraphError
from phoonnx_llasa.graph.mapped import map_weights

CODES = [3, 1, 4, 1, 5, 9, 2, 6] * 6


def test_only_small_weights_are_left_in_the_graph(small_bundle: Path) -> None:
    path = small_bundle / "xcodec2_decoder.onnx"
    mapped = map_weights(path)
    assert len(mapped.model) < path.stat().st_size / 4
    graph = onnx.load_from_string(mapped.model).graph
    original = {t.name: t for t in onnx.load(path).graph.initializer}
    assert {t.name for t in graph.initializer} == original.keys()
    content = path.read_bytes()
    external = [t for t in graph.initializer if t.external_data]
    assert external
    for tensor in external:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        assert entries["location"] == path.name
        offset, length = int(entries["offset"]), int(entries["length"])
        assert content[offset : offset + length] == original[tensor.name].raw_data
        assert tensor.dims == original[tensor.name].dims


def test_a_mapped_codec_sounds_the_same(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_bundle / "xcodec2_decoder.onnx"
    expected = open_codec(path).decode(CODES)
    monkeypatch.setattr(codec_module, "_MAPPED_FROM", 0)
    np.testing.assert_allclose(open_codec(path).decode(CODES), expected, atol=1e-5)


def test_it_works_behind_the_hubs_links(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = hub_cache.rglob("xcodec2_decoder.onnx")
    assert path.is_symlink()
    expected = open_codec(path).decode(CODES)
    monkeypatch.setattr(codec_module, "_MAPPED_FROM", 0)
    mapped = open_codec(path)
    np.testing.assert_allclose(mapped.decode(CODES), expected, atol=1e-5)
    session = mapped.session
    assert isinstance(session, onnxruntime.InferenceSession)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 100, b"not a graph at all", b"\x3a\xff\xff\xff\xff\x0f"]
)
def test_what_is_no_graph_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "xcodec2_decoder.onnx"
    path.write_bytes(content)
    monkeypatch.setattr(codec_module, "_MAPPED_FROM", 0)
    with pytest.raises(GraphError, match=r"xcodec2_decoder\.onnx"):
        open_codec(path)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_cut_short_is_named(small_bundle: Path, tmp_path: Path, share: float) -> None:
    whole = (small_bundle / "xcodec2_decoder.onnx").read_bytes()
    path = tmp_path / "xcodec2_decoder.onnx"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(GraphError, match=r"xcodec2_decoder\.onnx"):
        map_weights(path)
