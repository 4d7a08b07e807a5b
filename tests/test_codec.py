"""Codes to sound: alignment on a codec that says which code it plays, sound on real decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from phoonnx_llasa.codec import (
    Block,
    Codec,
    StreamSettings,
    decode_stream,
    decode_whole,
    open_codec,
)
from phoonnx_llasa.errors import GraphError, LlasaError, ParameterError

HOP = 320
SETTINGS = [
    StreamSettings(),
    *(
        StreamSettings(
            first_block_codes=first,
            block_codes=block,
            lookback_codes=lookback,
            lookahead_codes=lookahead,
        )
        for first, block, lookback, lookahead in [
            (1, 1, 0, 0),
            (1, 1, 3, 1),
            (1, 2, 0, 5),
            (1, 1000, 7, 0),
            (2, 3, 1000, 2),
            (3, 25, 50, 0),
            (4, 4, 4, 4),
            (5, 40, 8, 12),
            (7, 7, 9, 30),
            (10, 50, 0, 1),
            (25, 25, 50, 5),
            (50, 10, 20, 3),
            (64, 100, 150, 8),
            (200, 200, 100, 1),
            (1000, 1000, 1000, 1000),
        ]
    ),
]


class SpellingCodec:
    """Sample i of code c is 8 c + i, so that every sample tells where it is from."""

    hop_length = 8
    sample_rate = 400

    def __init__(self) -> None:
        self.windows: list[list[int]] = []

    def decode(self, codes: list[int]) -> np.ndarray:
        self.windows.append(list(codes))
        return (8 * np.repeat(codes, 8) + np.tile(np.arange(8), len(codes))).astype(np.float32)


class Source:
    """An iterator of codes that counts what was taken, may fail, and knows if it was closed."""

    def __init__(self, codes: list[int], *, fail_after: int | None = None) -> None:
        self.codes = codes
        self.fail_after = fail_after
        self.taken = 0
        self.closed = False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.taken == self.fail_after:
            raise RuntimeError("the model died")
        if self.taken == len(self.codes):
            raise StopIteration
        self.taken += 1
        return self.codes[self.taken - 1]

    def close(self) -> None:
        self.closed = True


def graph(
    path: Path,
    *,
    hop: int = HOP,
    codes: tuple[int, list[int | str]] = (TensorProto.INT64, [1, 1, "n"]),
    table: int = 16,
) -> Path:
    """A decoder that plays row c of a table for code c."""
    rows = np.random.default_rng(3).normal(size=(table, hop)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["codes"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["rows", "ids"], ["frames"], axis=0),
        helper.make_node("Reshape", ["frames", "flat"], ["audio"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "decoder",
            [helper.make_tensor_value_info("codes", *codes)],
            [helper.make_tensor_value_info("audio", TensorProto.FLOAT, [1, "samples"])],
            [
                onnx.numpy_helper.from_array(rows, "rows"),
                onnx.numpy_helper.from_array(np.array([1, -1], np.int64), "flat"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def small_codec(small_bundle: Path) -> Codec:
    return open_codec(small_bundle / "xcodec2_decoder.onnx", hop_length=HOP, sample_rate=16000)


@pytest.fixture(scope="module")
def demo_codec(demo_bundle: Path) -> Codec:
    return open_codec(demo_bundle / "xcodec2_decoder.onnx", hop_length=HOP, sample_rate=16000)


@pytest.fixture(scope="module")
def speech(demo_bundle: Path) -> list[list[int]]:
    """Codes of sentences in the built-in voice, as its own model speaks them."""
    from phoonnx_llasa.bundle import open_bundle
    from phoonnx_llasa.synthesis import Synthesizer

    synthesizer = Synthesizer.open(open_bundle(demo_bundle))
    sentences = (
        "We walked along the river until the sun went down.",
        "The children played in the garden all afternoon.",
        "He put the letter on the table and went away.",
    )
    spoken = []
    for sentence in sentences:
        blocks = synthesizer.synthesize(sentence, synthesizer.options({"seed": 1}))
        spoken.append([code for block in blocks for code in block.codes])
    assert all(len(codes) > 60 for codes in spoken)
    return spoken


def joined(blocks: list[Block]) -> np.ndarray:
    return np.concatenate([block.samples for block in blocks])


def rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def high_band(samples: np.ndarray) -> np.ndarray:
    """What is above 3 kHz."""
    spectrum = np.fft.rfft(samples.astype(np.float64))
    spectrum[: len(samples) * 3000 // 16000] = 0
    return np.fft.irfft(spectrum, len(samples))


def check_spelling(samples: np.ndarray, codes: list[int]) -> None:
    """Every sample is its code's, but for the fades: 2 samples at the start, 4 at the end."""
    spelled = 8 * np.repeat(codes, 8) + np.tile(np.arange(8), len(codes))
    np.testing.assert_array_equal(np.rint(samples[2:-4]), spelled[2:-4])
    assert np.all(np.abs(samples) <= spelled + 0.01)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_streaming_plays_every_code_once_and_in_order_for_every_count(
    settings: StreamSettings,
) -> None:
    context = list(range(5000, 5300))
    for count in range(1, 201):
        codes = list(range(1000, 1000 + count))
        blocks = list(
            decode_stream(SpellingCodec(), iter(codes), context=context, settings=settings)
        )
        assert [code for block in blocks for code in block.codes] == codes
        assert all(block.samples.shape == (8 * len(block.codes),) for block in blocks)
        check_spelling(joined(blocks), codes)


@pytest.mark.parametrize("context", [[], [7], list(range(5000, 5300))], ids=len)
def test_decoding_in_one_go_plays_every_code_once_and_in_order(context: list[int]) -> None:
    for count in range(1, 201):
        codes = list(range(1000, 1000 + count))
        block = decode_whole(SpellingCodec(), codes, context=context)
        assert block.codes == tuple(codes)
        check_spelling(block.samples, codes)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_real_decoder_gives_320_samples_per_code(
    small_codec: Codec, settings: StreamSettings
) -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 9, 17, 60):
        codes = rng.integers(0, 256, count).tolist()
        samples = joined(list(decode_stream(small_codec, codes, settings=settings)))
        assert samples.shape == (HOP * count,)
        assert samples.dtype == np.float32
        assert np.isfinite(samples).all()
        assert rms(samples) > 0


def test_blocks_double_up_to_the_largest_and_the_rest_comes_with_the_last() -> None:
    def sizes(count: int, **settings: int) -> list[int]:
        blocks = decode_stream(SpellingCodec(), range(count), settings=StreamSettings(**settings))
        return [len(block.codes) for block in blocks]

    assert sizes(300) == [10, 20, 40, 50, 50, 50, 50, 30]
    assert sizes(14) == [14]
    assert sizes(15) == [10, 5]
    assert sizes(12, first_block_codes=50, block_codes=4, lookahead_codes=1) == [4, 4, 4]
    assert sizes(6, first_block_codes=1, block_codes=2, lookahead_codes=1) == [1, 2, 2, 1]
    assert sizes(0) == []


def test_windows_are_lookback_block_and_lookahead() -> None:
    codec = SpellingCodec()
    context, codes = list(range(500, 700)), list(range(40))
    settings = StreamSettings(
        first_block_codes=10, block_codes=10, lookback_codes=15, lookahead_codes=5
    )
    list(decode_stream(codec, codes, context=context, settings=settings))
    first, second, third, last = codec.windows
    assert first == [*range(685, 700), *range(15)]
    assert second == [*range(695, 700), *range(25)]
    assert third == [*range(5, 35)]
    assert last == [*range(15, 40), *[39] * 8]


def test_sides_without_codes_are_filled_up_with_the_nearest_code() -> None:
    codec = SpellingCodec()
    decode_whole(codec, [3, 4, 5])
    decode_whole(codec, [3, 4, 5], context=[1, 2])
    settings = StreamSettings(
        first_block_codes=2, block_codes=2, lookback_codes=0, lookahead_codes=1
    )
    next(decode_stream(codec, [3, 4, 5, 6], context=[1, 2], settings=settings))
    assert codec.windows == [
        [*[3] * 8, 3, 4, 5, *[5] * 8],
        [*[1] * 6, 1, 2, 3, 4, 5, *[5] * 8],
        [*[3] * 8, 3, 4, 5, *[5] * 3],
    ]


def test_beginning_of_the_piece_sounds_the_same_in_later_windows() -> None:
    codec = SpellingCodec()
    settings = StreamSettings(
        first_block_codes=2, block_codes=2, lookback_codes=11, lookahead_codes=4
    )
    list(decode_stream(codec, range(9), settings=settings))
    assert codec.windows == [
        [*[0] * 8, *range(6)],
        [*[0] * 8, *range(8)],
        [*[0] * 7, *range(9), *[8] * 8],
    ]


def test_nothing_is_taken_before_the_first_block_is_asked_for() -> None:
    source = Source(list(range(100)))
    decode_stream(SpellingCodec(), source)
    assert source.taken == 0


@pytest.mark.parametrize("lookahead", [1, 5, 12])
def test_each_block_comes_as_soon_as_its_lookahead_has_come(lookahead: int) -> None:
    codec, source = SpellingCodec(), Source(list(range(400)))
    settings = StreamSettings(lookahead_codes=lookahead)
    played = 0
    for made, block in enumerate(decode_stream(codec, source, settings=settings), start=1):
        played += len(block.codes)
        assert source.taken == min(played + lookahead, 400)
        assert len(codec.windows) == made
    assert played == 400


def test_short_piece_in_a_stream_is_the_same_as_in_one_go(small_codec: Codec) -> None:
    rng = np.random.default_rng(1)
    context = rng.integers(0, 256, 130).tolist()
    for count in (1, 7, 14):
        codes = rng.integers(0, 256, count).tolist()
        (streamed,) = decode_stream(small_codec, codes, context=context)
        whole = decode_whole(small_codec, codes, context=context)
        assert streamed.samples.tobytes() == whole.samples.tobytes()
        assert streamed.codes == whole.codes


def test_error_of_the_codes_passes_through_and_blocks_before_it_stay(small_codec: Codec) -> None:
    codes = np.random.default_rng(2).integers(0, 256, 100).tolist()
    good = list(decode_stream(small_codec, codes))
    source = Source(codes, fail_after=50)
    stream = decode_stream(small_codec, source)
    got = [next(stream), next(stream)]
    with pytest.raises(RuntimeError, match="the model died"):
        next(stream)
    assert [block.codes for block in got] == [block.codes for block in good[:2]]
    assert joined(got).tobytes() == joined(good[:2]).tobytes()
    assert source.closed
    assert joined(list(decode_stream(small_codec, codes))).tobytes() == joined(good).tobytes()


def test_closing_the_stream_stops_and_closes_the_codes() -> None:
    source = Source(list(range(500)))
    stream = decode_stream(SpellingCodec(), source)
    next(stream)
    stream.close()
    assert source.closed
    assert source.taken == 15
    assert list(stream) == []


def test_dropping_the_stream_closes_the_codes() -> None:
    source = Source(list(range(500)))
    for _ in decode_stream(SpellingCodec(), source):
        break
    assert source.closed


def test_codes_are_closed_at_the_end_and_after_a_decoder_error(tmp_path: Path) -> None:
    finished = Source([1, 2, 3])
    list(decode_stream(SpellingCodec(), finished))
    assert finished.closed

    codec = open_codec(graph(tmp_path / "codec.onnx"))
    failed = Source([1] * 30 + [99] * 30)
    with pytest.raises(GraphError, match="99"):
        list(decode_stream(codec, failed))
    assert failed.closed


def test_no_codes_no_sound() -> None:
    assert list(decode_stream(SpellingCodec(), [], context=[1, 2])) == []
    whole = decode_whole(SpellingCodec(), [], context=[1, 2])
    assert (whole.samples.size, whole.samples.dtype, whole.codes) == (0, np.float32, ())


def test_numpy_codes_become_plain_integers(small_codec: Codec) -> None:
    codes = np.arange(40, dtype=np.int32)
    blocks = list(decode_stream(small_codec, codes, context=codes))
    whole = decode_whole(small_codec, codes, context=codes)
    for block in (*blocks, whole):
        assert all(type(code) is int for code in block.codes)


@pytest.mark.parametrize("bundle", ["small_codec", "demo_codec"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_codes_without_context_give_sound(
    bundle: str, count: int, request: pytest.FixtureRequest
) -> None:
    codec = request.getfixturevalue(bundle)
    for code in (0, 77, 255):
        samples = decode_whole(codec, [code] * count).samples
        assert samples.shape == (HOP * count,)
        assert np.isfinite(samples).all()
        assert rms(samples) > 0
        assert np.abs(samples).max() < 2


def test_same_sound_from_four_threads_and_from_a_slow_source(small_codec: Codec) -> None:
    codes = np.random.default_rng(4).integers(0, 256, 120).tolist()

    def once(make: Callable[[], Iterator[int]]) -> bytes:
        return joined(list(decode_stream(small_codec, make(), context=codes[:30]))).tobytes()

    def one_by_one() -> Iterator[int]:
        yield from codes

    expected = once(lambda: iter(codes))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: once(one_by_one), range(4))) == {expected}


def cases(speech: list[list[int]], context: bool) -> list[tuple[list[int], list[int]]]:
    sentences = [(codes, speech[i - 1] if context else []) for i, codes in enumerate(speech)]
    together = [code for codes in speech for code in codes]
    return [*sentences, (together, speech[0] if context else [])]


@pytest.mark.parametrize("context", [True, False], ids=["behind a preset", "behind nothing"])
def test_blocks_of_speech_are_as_loud_as_in_one_go(
    demo_codec: Codec, speech: list[list[int]], context: bool
) -> None:
    for codes, before in cases(speech, context):
        blocks = list(decode_stream(demo_codec, codes, context=before))
        whole = decode_whole(demo_codec, codes, context=before).samples
        assert len(blocks) >= 4
        at = compared = 0
        for block in blocks:
            reference = whole[at : at + block.samples.size]
            at += block.samples.size
            if rms(reference) > 0.02 * np.abs(whole).max():  # a pause has no level to speak of
                compared += 1
                assert abs(20 * np.log10(rms(block.samples) / rms(reference))) < 1.0
        assert compared >= 3
        assert rms(joined(blocks) - whole) < (0.15 if context else 0.35) * rms(whole)


@pytest.mark.parametrize("context", [True, False], ids=["behind a preset", "behind nothing"])
@pytest.mark.parametrize(
    "settings",
    [StreamSettings(), StreamSettings(first_block_codes=4, block_codes=8, lookahead_codes=2)],
    ids=["defaults", "small blocks"],
)
def test_seams_jump_no_more_than_the_sound_around_them(
    demo_codec: Codec, speech: list[list[int]], settings: StreamSettings, context: bool
) -> None:
    for codes, before in cases(speech, context):
        blocks = list(decode_stream(demo_codec, codes, context=before, settings=settings))
        steps = np.abs(np.diff(joined(blocks)))
        for seam in np.cumsum([block.samples.size for block in blocks])[:-1]:
            step = steps[seam - 1]
            around = np.concatenate(
                [steps[max(0, seam - 801) : seam - 1], steps[seam : seam + 800]]
            )
            assert step <= max(around.max(), 1e-3)


@pytest.mark.parametrize("decoder", ["demo_codec", "small_codec"])
def test_sound_starts_and_ends_without_a_pop(
    decoder: str, speech: list[list[int]], request: pytest.FixtureRequest
) -> None:
    codec = request.getfixturevalue(decoder)
    for codes in speech:
        # cut into the middle of speech on both sides, where the decoder is loud
        part = [code % 256 if decoder == "small_codec" else code for code in codes[25:70]]
        before = part[:20]
        streamed = joined(list(decode_stream(codec, part, context=before)))
        for samples in (streamed, decode_whole(codec, part, context=before).samples):
            peak = np.abs(samples).max()
            assert abs(samples[0]) < 1e-3 * peak
            assert abs(samples[-1]) < 1e-3 * peak
            assert abs(np.diff(samples[:80])).max() <= abs(np.diff(samples)).max()


def test_end_of_speech_is_no_noisier_than_in_one_go(
    demo_codec: Codec, speech: list[list[int]]
) -> None:
    for codes, before in cases(speech, context=True):
        streamed = joined(list(decode_stream(demo_codec, codes, context=before)))
        whole = decode_whole(demo_codec, codes, context=before).samples
        for part in (lambda sound: sound, high_band):
            level, reference = rms(part(streamed)[-1600:]), rms(part(whole)[-1600:])
            assert level < 1.12 * reference + 1e-3 * rms(whole)  # 1 dB


def test_context_and_lookahead_bring_the_stream_closer_to_one_go(
    demo_codec: Codec, speech: list[list[int]]
) -> None:
    def error(**changes: int) -> float:
        settings = StreamSettings(**changes)
        total = 0.0
        for codes, before in cases(speech, context=True):
            streamed = joined(
                list(decode_stream(demo_codec, codes, context=before, settings=settings))
            )
            whole = decode_whole(demo_codec, codes, context=before).samples
            total += rms(streamed - whole) / rms(whole)
        return total

    assert error() < 0.8 * error(lookback_codes=25) < 0.8 * error(lookback_codes=0)
    assert error() < 0.8 * error(lookahead_codes=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first_block_codes", 0),
        ("first_block_codes", -1),
        ("block_codes", 0),
        ("block_codes", 1001),
        ("block_codes", 2.5),
        ("lookback_codes", -1),
        ("lookback_codes", True),
        ("lookahead_codes", -5),
        ("lookahead_codes", "5"),
        ("lookahead_codes", None),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=rf"'{name}' is .*integer from [01] to 1000") as caught:
        StreamSettings(**{name: value})
    assert caught.value.name == name


def test_decode_is_the_graphs_own_output(small_codec: Codec, small_bundle: Path) -> None:
    codes = np.random.default_rng(5).integers(0, 256, 33)
    session = onnxruntime.InferenceSession(
        str(small_bundle / "xcodec2_decoder.onnx"), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {session.get_inputs()[0].name: codes[None, None, :]})
    got = small_codec.decode(codes.tolist())
    assert got.shape == (HOP * 33,)
    np.testing.assert_array_equal(got, expected.reshape(-1))
    assert small_codec.decode([]).shape == (0,)


@pytest.mark.parametrize("content", [None, b"", b"not a graph"], ids=["missing", "empty", "junk"])
def test_file_that_does_not_load_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "codec.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GraphError, match=r"codec\.onnx: does not load") as caught:
        open_codec(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("codes", "complaint"),
    [
        ((TensorProto.FLOAT, [1, 1, "n"]), r"'codes' is tensor\(float\)"),
        ((TensorProto.INT64, [1, "n"]), r"'codes' is tensor\(int64\) \[1, 'n'\]"),
        ((TensorProto.INT64, [1, 1, 50]), "exactly 50 codes"),
    ],
)
def test_graph_with_another_signature_is_refused(
    tmp_path: Path, codes: tuple[int, list[int | str]], complaint: str
) -> None:
    with pytest.raises(GraphError, match=complaint):
        open_codec(graph(tmp_path / "codec.onnx", codes=codes))


def test_language_model_in_place_of_the_codec_is_refused(small_bundle: Path) -> None:
    with pytest.raises(GraphError, match="is not a codec decoder"):
        open_codec(small_bundle / "model.onnx")


def test_wrong_hop_length_is_found_at_the_first_decode(tmp_path: Path) -> None:
    codec = open_codec(graph(tmp_path / "codec.onnx", hop=160), hop_length=320)
    with pytest.raises(GraphError, match=r"480 samples for 3 codes, expected 320 .*hop_length"):
        codec.decode([1, 2, 3])


def test_code_outside_the_codebook_is_an_error_and_breaks_nothing(tmp_path: Path) -> None:
    codec = open_codec(graph(tmp_path / "codec.onnx", table=16))
    good = codec.decode([1, 15])
    with pytest.raises(LlasaError, match=r"codec\.onnx: fails on 2 codes from 1 to 16"):
        codec.decode([1, 16])
    np.testing.assert_array_equal(codec.decode([1, 15]), good)
