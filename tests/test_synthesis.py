"""The whole pipeline on the small random bundle: lengths, seeds, threads, wrong input."""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from phoonnx_llasa.bundle import open_bundle
from phoonnx_llasa.compact_decoder import CompactDecoder
from phoonnx_llasa.errors import (
    BundleError,
    ConfigError,
    LlasaError,
    ParameterError,
    PromptTooLongError,
    UnknownPresetError,
)
from phoonnx_llasa.language_model import CodeStream
from phoonnx_llasa.presets import Preset
from phoonnx_llasa.prompt import Prompt
from phoonnx_llasa.synthesis import SpeechBlock, Synthesizer, max_codes

TEXT = "Dealing with family secrets is never easy. Yet, sometimes, omission is a kindness."


@pytest.fixture(scope="module")
def synthesizer(small_bundle: Path) -> Synthesizer:
    return Synthesizer.open(open_bundle(small_bundle))


def speak(synthesizer: Synthesizer, text: str, **extra) -> list[SpeechBlock]:
    return list(synthesizer.synthesize(text, synthesizer.options(extra)))


def samples(blocks: list[SpeechBlock]) -> np.ndarray:
    return np.concatenate([block.samples for block in blocks])


def test_every_code_is_320_samples(synthesizer: Synthesizer) -> None:
    for seed in range(5):
        blocks = speak(synthesizer, TEXT, seed=seed, max_new_tokens=150)
        assert all(len(block.samples) == 320 * len(block.codes) > 0 for block in blocks)
        assert all(block.samples.dtype == np.float32 for block in blocks)
        assert np.isfinite(samples(blocks)).all()


def test_streamed_or_not_the_codes_are_the_same(synthesizer: Synthesizer) -> None:
    streamed = speak(synthesizer, TEXT, seed=3, max_new_tokens=120)
    whole = speak(synthesizer, TEXT, seed=3, max_new_tokens=120, stream=False)
    assert len(whole) == 1
    assert len(streamed) > 1
    assert [c for block in streamed for c in block.codes] == list(whole[0].codes)
    assert len(samples(streamed)) == len(samples(whole))


def test_a_seed_gives_the_same_samples_in_any_thread_and_at_any_pace(
    synthesizer: Synthesizer,
) -> None:
    def call(_: int) -> bytes:
        return samples(speak(synthesizer, TEXT, seed=11, max_new_tokens=100)).tobytes()

    expected = call(0)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(call, range(8))) == {expected}
    # Two calls pulled in turn, block by block.
    options = synthesizer.options({"seed": 11, "max_new_tokens": 100})
    slow, other = synthesizer.synthesize(TEXT, options), synthesizer.synthesize("No.", options)
    pulled = []
    for block in slow:
        pulled.append(block)
        next(other, None)
    assert samples(pulled).tobytes() == expected


def test_without_a_seed_every_call_differs(synthesizer: Synthesizer) -> None:
    first, second = (speak(synthesizer, TEXT, max_new_tokens=50) for _ in range(2))
    assert [b.codes for b in first] != [b.codes for b in second]


def test_pieces_differ_even_where_their_text_does_not(synthesizer: Synthesizer) -> None:
    blocks = speak(synthesizer, "Say it.\n\nSay it.", seed=1, max_new_tokens=40, stream=False)
    assert [block.text for block in blocks] == ["Say it.", "Say it."]
    assert blocks[0].codes != blocks[1].codes


def test_silence_stands_between_pieces_and_nowhere_else(synthesizer: Synthesizer) -> None:
    blocks = speak(
        synthesizer, "One.\n\nTwo.", seed=1, max_new_tokens=20, sentence_silence=0.25, stream=False
    )
    assert [len(block.codes) > 0 for block in blocks] == [True, False, True]
    assert [block.piece for block in blocks] == [0, 1, 1]
    assert len(blocks[1].samples) == 4000
    assert not blocks[1].samples.any()


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "...", "?!", "。。。", "🙂", "—", "\u200b"])
@pytest.mark.parametrize("stream", [True, False])
def test_nothing_to_say_is_silence(synthesizer: Synthesizer, text: str, stream: bool) -> None:
    assert speak(synthesizer, text, stream=stream) == []


@pytest.mark.parametrize("text", ["7", "a", "No.", "好", "<|eot_id|>", "<|s_5|>"])
def test_the_shortest_text_is_spoken(synthesizer: Synthesizer, text: str) -> None:
    assert len(samples(speak(synthesizer, text, seed=2))) >= 320


def test_a_cap_that_is_hit_is_said_on_the_last_block(
    synthesizer: Synthesizer, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = speak(synthesizer, TEXT, seed=5, max_new_tokens=60, top_k=20)
    spoken = sum(len(block.codes) for block in blocks)
    if spoken < 60:  # the model ended by itself
        pytest.fail("pick another seed: this one ends before the cap")
    assert [block.truncated for block in blocks] == [False] * (len(blocks) - 1) + [True]
    assert "cut off at 60 codes" in caplog.text


def test_closing_stops_within_one_step(
    synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[CodeStream] = []
    original = CodeStream.__init__

    def remember(self: CodeStream, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        streams.append(self)

    monkeypatch.setattr(CodeStream, "__init__", remember)
    blocks = synthesizer.synthesize(TEXT, synthesizer.options({"seed": 4}))
    next(blocks)
    (codes,) = streams
    so_far = len(codes.codes)
    blocks.close()  # type: ignore[attr-defined]
    assert codes.finished
    assert len(codes.codes) == so_far
    assert next(codes, None) is None


def test_the_first_block_does_not_wait_for_the_piece(
    synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = synthesizer.options({"seed": 4})
    first = next(iter(synthesizer.synthesize(TEXT, options)))
    whole = speak(synthesizer, TEXT, seed=4)
    assert first.codes == whole[0].codes
    assert len(first.codes) <= options.windows.first_block_codes
    assert len(whole) > 1


def test_a_long_text_is_spoken_piece_by_piece(synthesizer: Synthesizer) -> None:
    text = ("The quick brown fox jumps over the lazy dog. " * 450)[:20_000]
    blocks = synthesizer.synthesize(text, synthesizer.options({"seed": 1, "max_new_tokens": 30}))
    heard = list(islice(blocks, 12))
    assert heard[-1].piece >= 2
    blocks.close()  # type: ignore[attr-defined]


def test_twenty_thousand_characters_without_a_space_are_split(synthesizer: Synthesizer) -> None:
    blocks = synthesizer.synthesize("x" * 20_000, synthesizer.options({"max_new_tokens": 5}))
    assert len(next(iter(blocks)).text) <= 300


def test_a_text_beyond_all_bounds_is_refused(synthesizer: Synthesizer) -> None:
    with pytest.raises(ParameterError, match="100000 characters"):
        synthesizer.synthesize("a" * 100_001, synthesizer.options({}))


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["list"]])
def test_what_is_no_text_is_refused_at_the_call(synthesizer: Synthesizer, text) -> None:
    with pytest.raises(ParameterError, match="'text'"):
        synthesizer.synthesize(text, synthesizer.options({}))


def test_an_unknown_preset_is_refused_at_the_call_and_nothing_is_broken(
    synthesizer: Synthesizer,
) -> None:
    with pytest.raises(UnknownPresetError, match="en_female_a"):
        synthesizer.synthesize(TEXT, synthesizer.options({"voice": "nobody"}))
    assert speak(synthesizer, "Still here.", seed=1, max_new_tokens=20)


def test_prompt_and_speech_fill_the_context_and_no_more(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    config = json.loads((folder / "config.json").read_text())
    config["llasa"]["context_length"] = 300
    (folder / "config.json").write_text(json.dumps(config))
    synthesizer = Synthesizer.open(open_bundle(folder))
    lengths = []
    feed = CompactDecoder.feed

    def counted(self: CompactDecoder, ids: Sequence[int]) -> np.ndarray:
        logits = feed(self, ids)
        lengths.append(self.length)
        return logits

    monkeypatch.setattr(CompactDecoder, "feed", counted)
    for seed in range(12):
        options = synthesizer.options(
            {"seed": seed, "voice": "none", "max_new_tokens": 5000, "top_k": 5}
        )
        for block in synthesizer.synthesize("Hello you.", options):
            if block.truncated:
                break
    assert max(lengths) == 299  # 300 tokens with the last code, which is never fed


def test_a_piece_whose_speech_would_not_fit_is_split_further(
    small_bundle: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    config = json.loads((folder / "config.json").read_text())
    config["llasa"]["context_length"] = 700
    (folder / "config.json").write_text(json.dumps(config))
    synthesizer = Synthesizer.open(open_bundle(folder))
    options = synthesizer.options({"seed": 1, "voice": "none", "max_new_tokens": 10})
    pieces = {b.piece: b.text for b in synthesizer.synthesize(TEXT * 3, options)}
    assert all(len(text) < 160 for text in pieces.values())
    assert " ".join(pieces.values()).replace(" ", "") == (TEXT * 3).replace(" ", "")


def test_a_preset_that_fills_the_context_is_refused_with_a_reason(
    small_bundle: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    config = json.loads((folder / "config.json").read_text())
    config["llasa"]["context_length"] = 200
    voices = json.loads((folder / "voices.json").read_text(encoding="utf-8"))
    voices["presets"]["en_male_a"]["codes"] = [1, 2, 3, 4] * 60
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "voices.json").write_text(json.dumps(voices))
    synthesizer = Synthesizer.open(open_bundle(folder))
    with pytest.raises(PromptTooLongError, match="shorter preset"):
        synthesizer.synthesize("Hello.", synthesizer.options({"voice": "en_male_a"}))


def test_an_invented_speaker_goes_on_from_piece_to_piece(
    synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Preset | None] = []
    build = synthesizer._prompts.build

    def watched(text: str, preset: Preset | None = None) -> Prompt:
        used.append(preset)
        return build(text, preset)

    monkeypatch.setattr(synthesizer._prompts, "build", watched)
    blocks = speak(
        synthesizer,
        "One.\n\nTwo.\n\nThree.",
        seed=1,
        voice="none",
        max_new_tokens=400,
        stream=False,
    )
    if blocks[0].truncated:
        pytest.fail("pick another seed: the first piece must end by itself")
    last = used[-1]
    assert last is not None
    assert (last.text, last.codes) == ("One.", blocks[0].codes)


def test_presets_decide_the_prompt(synthesizer: Synthesizer) -> None:
    by_voice = {
        voice: speak(synthesizer, "Hello.", seed=1, voice=voice, max_new_tokens=30)[0].codes
        for voice in ("en_female_a", "en_male_a", "zh_female_a", "none")
    }
    assert len(set(by_voice.values())) == 4


def test_the_reference_is_never_heard(synthesizer: Synthesizer) -> None:
    # Same codes, different context: only the codes' own sound may come out.
    blocks = speak(synthesizer, "Hello.", seed=1, voice="zh_male_a", max_new_tokens=20)
    assert len(samples(blocks)) == 320 * sum(len(block.codes) for block in blocks)


def test_a_broken_sampling_default_names_the_field(small_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    config = json.loads((folder / "config.json").read_text())
    config["inference"] = {"top_p": 7}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"inference\.top_p"):
        Synthesizer.open(open_bundle(folder))


@pytest.mark.parametrize("name", ["model.onnx", "xcodec2_decoder.onnx", "tokenizer.json"])
def test_files_of_another_model_do_not_pass(small_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    other = "model.onnx" if name == "xcodec2_decoder.onnx" else "xcodec2_decoder.onnx"
    shutil.copy(small_bundle / other, folder / name)
    with pytest.raises(BundleError):
        Synthesizer.open(open_bundle(folder))


def test_errors_share_one_base() -> None:
    assert issubclass(ParameterError, LlasaError)
    assert issubclass(BundleError, LlasaError)


def test_the_cap_grows_with_the_text_and_stops_at_the_context() -> None:
    prompt = Prompt((1,) * 100, 1948)
    assert max_codes("No.", prompt, None) < max_codes("Now that is longer.", prompt, None)
    assert max_codes("7", prompt, None) >= 150
    assert max_codes("x" * 300, prompt, None) == 1948
    assert max_codes("No.", prompt, 40) == 40
    assert max_codes("No.", prompt, 5000) == 1948
