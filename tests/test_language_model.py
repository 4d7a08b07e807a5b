"""The loop over steps: codes, caps, ends, loops and silence, on a scripted and on a real model."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from phoonnx_llasa.compact_decoder import CompactModel
from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.language_model import (
    HOLD_AFTER,
    LOOP_LENGTH,
    MAX_RESAMPLES,
    CodeStream,
    LanguageModel,
    LoadSettings,
    open_language_model,
    open_published,
)
from phoonnx_llasa.prompt import SpeechTokenizer
from phoonnx_llasa.sampling import Sampler, SamplingParams, SpeechLayout

FIRST = 10
LAYOUT = SpeechLayout(first_code=FIRST, num_codes=50, end=3)
END = 50  # what a script writes for the end


class ScriptedDecoder:
    """Wants what ``script`` says at each place, and keeps what it was fed like a KV cache."""

    def __init__(self, script: Callable[[int], int | None]) -> None:
        self.script = script
        self.tokens: list[int] = []
        self.prompt_length: int | None = None
        self.feeds = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def feed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        self.feeds += 1
        self.tokens.extend(ids)
        if self.prompt_length is None:
            self.prompt_length = len(ids)
        wanted = self.script(len(self.tokens) - self.prompt_length)
        logits = np.zeros(64, np.float32)
        if wanted is not None:
            logits[LAYOUT.end if wanted == END else FIRST + wanted] = 50.0
        return logits

    def truncate(self, length: int) -> None:
        assert 0 < length <= len(self.tokens)
        del self.tokens[length:]


def stream(decoder, *, max_new: int = 500, temperature: float = 1.0, **more) -> CodeStream:
    return CodeStream(
        decoder,
        [1, 2, 4],
        sampler=Sampler(SamplingParams(temperature=temperature), LAYOUT, (5, 0)),
        first_code_id=FIRST,
        max_new=max_new,
        seed=(5, 0),
        **more,
    )


def test_codes_come_until_the_end_token() -> None:
    decoder = ScriptedDecoder(lambda i: i % 40 if i < 30 else END)
    codes = stream(decoder)
    assert list(codes) == list(range(30))
    assert (codes.finished, codes.truncated, codes.stalled) == (True, False, False)
    assert decoder.tokens == [1, 2, 4, *range(FIRST, FIRST + 30)]


def test_the_end_is_barred_before_the_first_code() -> None:
    codes = list(stream(ScriptedDecoder(lambda i: END)))
    assert len(codes) == 1


def test_the_cap_is_exact_and_said() -> None:
    decoder = ScriptedDecoder(lambda i: i % 40)
    codes = stream(decoder, max_new=33)
    assert len(list(codes)) == 33
    assert codes.truncated
    assert decoder.length == 3 + 32  # the last code is never fed


def test_an_end_at_the_cap_is_no_truncation() -> None:
    codes = stream(ScriptedDecoder(lambda i: i % 40 if i < 33 else END), max_new=34)
    assert len(list(codes)) == 33
    assert not codes.truncated


def test_each_code_costs_one_step_and_nothing_runs_ahead() -> None:
    decoder = ScriptedDecoder(lambda i: i % 40)
    codes = stream(decoder)
    assert decoder.feeds == 0
    for expected in range(1, 6):
        next(codes)
        assert decoder.feeds == expected
    codes.close()
    assert list(codes) == []
    assert decoder.feeds == 5


def test_a_loop_is_sampled_again_and_heard_for_half_a_second_at_most() -> None:
    falls_into_loop = [True]

    def script(i: int) -> int | None:
        if i >= 200:
            return END
        if i >= 40 and falls_into_loop[0]:
            return 7
        return i % 40

    decoder = ScriptedDecoder(script)
    real_truncate = decoder.truncate

    def truncate(length: int) -> None:
        falls_into_loop[0] = False  # after the resample the model goes on as it should
        real_truncate(length)

    decoder.truncate = truncate  # type: ignore[method-assign]
    codes = stream(decoder)
    heard = list(codes)
    assert heard[:40] == list(range(40))
    assert heard.count(7) <= HOLD_AFTER + 5
    # The model went on from where the loop began, with none of it in its cache.
    assert decoder.tokens[3:] == [FIRST + i % 40 for i in range(200)]
    assert heard[-5:] == [i % 40 for i in range(195, 200)]
    assert not codes.stalled


def test_a_model_that_stays_stuck_is_ended() -> None:
    decoder = ScriptedDecoder(lambda i: i % 40 if i < 60 else 7)
    codes = stream(decoder, max_new=100_000)
    heard = list(codes)
    assert codes.stalled
    assert not codes.truncated
    assert len(heard) < 60 + HOLD_AFTER
    assert decoder.feeds < 60 + (MAX_RESAMPLES + 1) * (LOOP_LENGTH + 2)


def test_greedy_decoding_does_not_try_the_same_thing_again() -> None:
    decoder = ScriptedDecoder(lambda i: 7)
    codes = stream(decoder, temperature=0.0, max_new=100_000)
    assert len(list(codes)) < HOLD_AFTER
    assert codes.stalled
    assert decoder.feeds == LOOP_LENGTH


def test_a_repeat_that_ends_by_itself_is_given_out_whole() -> None:
    def script(i: int) -> int:
        return 7 if 40 <= i < 40 + LOOP_LENGTH - 10 else (END if i >= 200 else i % 40)

    heard = list(stream(ScriptedDecoder(script)))
    assert heard == [script(i) for i in range(200)]


def test_silence_is_sampled_again() -> None:
    quiet = set(range(20))  # twenty codes that all sound like nothing
    silent = [True]

    def script(i: int) -> int:
        if i >= 400:
            return END
        return i % 20 if i >= 60 and silent[0] else 20 + i % 20

    decoder = ScriptedDecoder(script)
    real_truncate = decoder.truncate

    def truncate(length: int) -> None:
        silent[0] = False
        real_truncate(length)

    decoder.truncate = truncate  # type: ignore[method-assign]
    codes = stream(decoder, is_silent=lambda run: set(run) <= quiet)
    heard = list(codes)
    assert 100 <= sum(code in quiet for code in heard) <= 160
    assert not codes.stalled
    assert all(code not in quiet for code in heard[-100:])


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ParameterError, match="max_new_tokens"):
        stream(ScriptedDecoder(lambda i: 0), max_new=0)


# --- the real graph -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(small_bundle: Path) -> LanguageModel:
    return open_published(small_bundle / "model.onnx")


def test_the_cache_geometry_is_read_off_the_graph(model: LanguageModel, small_bundle: Path) -> None:
    graph = onnx.load(small_bundle / "model.onnx", load_external_data=False).graph
    assert 2 * model.num_layers == sum("past_key" in value.name for value in graph.input)
    assert model.num_rows > 256


def test_one_call_or_many_give_the_same_logits(model: LanguageModel) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, model.num_rows, 40)]
    at_once = model.decoder()
    expected = at_once.feed(ids).copy()
    step_by_step = model.decoder()
    for token in ids:
        logits = step_by_step.feed([token])
    assert step_by_step.length == at_once.length == 40
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_what_was_taken_back_leaves_no_trace(model: LanguageModel) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, model.num_rows, 30)]
    clean = model.decoder()
    expected = clean.feed(ids).copy()
    rolled_back = model.decoder()
    rolled_back.feed(ids[:20])
    rolled_back.feed([5, 6, 7, 8])
    rolled_back.truncate(20)
    assert rolled_back.length == 20
    np.testing.assert_allclose(rolled_back.feed(ids[20:]), expected, atol=1e-5)


def test_two_calls_do_not_share_a_cache(model: LanguageModel) -> None:
    first, second = model.decoder(), model.decoder()
    first.feed([1, 2, 3])
    alone = model.decoder().feed([9]).copy()
    np.testing.assert_array_equal(second.feed([9]), alone)


def test_another_graph_is_refused_with_what_differs(small_bundle: Path) -> None:
    with pytest.raises(GraphError, match=r"xcodec2_decoder\.onnx.*not a KV-cached language model"):
        open_published(small_bundle / "xcodec2_decoder.onnx")


def test_a_graph_that_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"garbage")
    with pytest.raises(GraphError, match=r"model\.onnx: does not load"):
        open_published(tmp_path / "model.onnx")


# --- which graph runs ---------------------------------------------------------------------------


def open_small(bundle: Path, **settings: object) -> LanguageModel | CompactModel:
    tokenizer = SpeechTokenizer(bundle / "tokenizer.json")
    ids = (tokenizer.first_code_id, tokenizer.first_code_id + 255, tokenizer.end_id)
    return open_language_model(
        bundle / "model.onnx",
        rows=(min(ids), max(ids)),
        context_length=2048,
        settings=LoadSettings(**settings),  # type: ignore[arg-type]
    )


def test_the_compact_graph_runs_once_it_is_proved(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(open_small(small_bundle, proofs=tmp_path), CompactModel)
    (proof,) = tmp_path.iterdir()
    assert json.loads(proof.read_text())["passed"] is True

    def never(*args: object, **kwargs: object) -> None:
        pytest.fail("the proof was made again")

    monkeypatch.setattr("phoonnx_llasa.language_model.open_published", never)
    assert isinstance(open_small(small_bundle, proofs=tmp_path), CompactModel)
    assert isinstance(open_small(small_bundle, proof="off"), CompactModel)


def test_a_proof_can_be_forced(small_bundle: Path, tmp_path: Path) -> None:
    open_small(small_bundle, proofs=tmp_path)
    (proof,) = tmp_path.iterdir()
    proof.write_text(json.dumps({"passed": False, "reason": "max_abs is 3", "figures": {}}))
    assert isinstance(open_small(small_bundle, proofs=tmp_path), LanguageModel)
    assert isinstance(open_small(small_bundle, proofs=tmp_path, proof="force"), CompactModel)


def test_a_graph_that_fails_its_proof_is_not_used_and_it_is_said_why(
    small_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_small(small_bundle, proofs=tmp_path)
    (proof,) = tmp_path.iterdir()
    proof.write_text(json.dumps({"passed": False, "reason": "max_abs is 3", "figures": {}}))
    model = open_small(small_bundle, proofs=tmp_path)
    assert isinstance(model, LanguageModel)
    assert "max_abs is 3" in caplog.text
    assert model.decoder().feed([1, 2]).shape == (model.num_rows,)


def test_the_published_graph_can_be_chosen(small_bundle: Path) -> None:
    assert isinstance(open_small(small_bundle, compact=False), LanguageModel)


def test_both_graphs_give_the_same_logits(small_bundle: Path) -> None:
    published = open_small(small_bundle, compact=False)
    compact = open_small(small_bundle, proof="off")
    ids = [int(i) for i in np.random.default_rng(2).integers(0, published.num_rows, 60)]
    stop = compact.row_offset + compact.num_rows
    expected = published.decoder().feed(ids)[compact.row_offset : stop]
    np.testing.assert_allclose(compact.decoder().feed(ids), expected, atol=2e-5)


def test_the_environment_chooses_how_to_load(tmp_path: Path) -> None:
    chosen = LoadSettings.from_environment(
        {
            "PHOONNX_LLASA_GRAPH": "published",
            "PHOONNX_LLASA_PROOF": "Off",
            "PHOONNX_LLASA_PREPACK": "1",
            "XDG_CACHE_HOME": str(tmp_path),
        }
    )
    assert chosen == LoadSettings(
        compact=False, proof="off", proofs=tmp_path / "phoonnx_llasa" / "proofs", prepack=True
    )
    assert LoadSettings.from_environment({}).compact
    with pytest.raises(ParameterError, match=r"PHOONNX_LLASA_PROOF.*auto or force or off"):
        LoadSettings.from_environment({"PHOONNX_LLASA_PROOF": "maybe"})
