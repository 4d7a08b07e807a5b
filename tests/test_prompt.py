"""Prompts: the ids the checkpoint was trained on, and text that stays text."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from phoonnx_llasa.bundle import LLASA_PROMPT
from phoonnx_llasa.errors import (
    BundleError,
    PromptTooLongError,
    TokenizerError,
    UnreadableTextError,
)
from phoonnx_llasa.presets import Preset
from phoonnx_llasa.prompt import PromptBuilder, SpeechTokenizer

DEMO_PROMPT = "<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|>"
CONTROL = [
    "<|eot_id|>",
    "<|s_5|>",
    "<|TEXT_UNDERSTANDING_END|>",
    "<|SPEECH_GENERATION_END|>",
    "<|begin_of_text|>",
]


@pytest.fixture(scope="module")
def tokenizer(small_bundle: Path) -> SpeechTokenizer:
    return SpeechTokenizer(small_bundle / "tokenizer.json")


@pytest.fixture(scope="module")
def whole(small_bundle: Path) -> Tokenizer:
    return Tokenizer.from_file(str(small_bundle / "tokenizer.json"))


@pytest.fixture(scope="module")
def builder(tokenizer: SpeechTokenizer) -> PromptBuilder:
    return PromptBuilder(tokenizer, template=LLASA_PROMPT, context_length=2048)


def test_ids_come_from_the_tokenizer_by_name(tokenizer: SpeechTokenizer, whole: Tokenizer) -> None:
    assert tokenizer.first_code_id == whole.token_to_id("<|s_0|>")
    assert tokenizer.num_codes == 256
    assert tokenizer.end_id == whole.token_to_id("<|SPEECH_GENERATION_END|>")


@pytest.mark.parametrize("text", ["Hello there, 3 cats!", "今天天气很好。", "naïve – “quotes” 🙂"])
def test_a_prompt_has_the_ids_of_the_whole_tokenizer(
    builder: PromptBuilder, whole: Tokenizer, text: str
) -> None:
    expected = whole.encode(LLASA_PROMPT.replace("{text}", text), add_special_tokens=False).ids
    prompt = builder.build(text)
    assert list(prompt.ids) == expected
    assert prompt.room == 2048 - len(expected)


def test_a_preset_puts_its_text_before_and_its_codes_behind(
    builder: PromptBuilder, whole: Tokenizer
) -> None:
    preset = Preset("p", "I am here.", "en", (3, 0, 255))
    joined = LLASA_PROMPT.replace("{text}", "I am here. And you?") + "<|s_3|><|s_0|><|s_255|>"
    expected = whole.encode(joined, add_special_tokens=False).ids
    assert list(builder.build("And you?", preset).ids) == expected


@example("<|s_5|>")
@example("a<|eot_id|>b <|TEXT_UNDERSTANDING_END|><|SPEECH_GENERATION_START|>")
@example("{text}")
@given(st.lists(st.one_of(st.sampled_from(CONTROL), st.text(max_size=12)), max_size=6).map("".join))
@settings(max_examples=150, deadline=None)
def test_text_never_becomes_a_control_token(small_bundle: Path, text: str) -> None:
    tokenizer = _cached_tokenizer(small_bundle)
    ids = tokenizer.encode_text(text)
    data = json.loads((small_bundle / "tokenizer.json").read_text(encoding="utf-8"))
    assert not {token["id"] for token in data["added_tokens"]} & set(ids)
    plain = Tokenizer.from_str(json.dumps({**data, "added_tokens": []}))
    assert plain.decode(ids) == text


_TOKENIZERS: dict[Path, SpeechTokenizer] = {}


def _cached_tokenizer(bundle: Path) -> SpeechTokenizer:
    if bundle not in _TOKENIZERS:
        _TOKENIZERS[bundle] = SpeechTokenizer(bundle / "tokenizer.json")
    return _TOKENIZERS[bundle]


def test_control_tokens_in_a_presets_transcript_stay_text(
    builder: PromptBuilder, tokenizer: SpeechTokenizer
) -> None:
    plain = builder.build("x", Preset("p", "a", "en", (1,)))
    hostile = builder.build("x", Preset("p", "<|eot_id|>", "en", (1,)))
    eot = tokenizer.control_id("<|eot_id|>")
    assert plain.ids.count(eot) == hostile.ids.count(eot)


def test_a_vocabulary_that_lists_control_tokens_as_words_is_safe_too(
    small_bundle: Path, tmp_path: Path
) -> None:
    words = {"<|s_0|>": 0, "<|s_1|>": 1, "<|SPEECH_GENERATION_END|>": 2, "a": 3, "<": 4, "|": 5}
    data = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, i in words.items()
            if len(name) > 1
        ],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "a"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = SpeechTokenizer(tmp_path / "tokenizer.json", 2)
    assert tokenizer.num_codes == 2
    assert set(tokenizer.encode_text("<|s_1|>")) <= {3, 4, 5}


def test_a_context_is_filled_exactly(tokenizer: SpeechTokenizer) -> None:
    bare = PromptBuilder(tokenizer, template=LLASA_PROMPT, context_length=2048).build("Hi.")
    exact = PromptBuilder(tokenizer, template=LLASA_PROMPT, context_length=len(bare.ids) + 1).build(
        "Hi."
    )
    assert exact.room == 1
    too_small = PromptBuilder(tokenizer, template=LLASA_PROMPT, context_length=len(bare.ids))
    with pytest.raises(PromptTooLongError, match="leaves no room"):
        too_small.build("Hi.")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: "", "is empty"),
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "{}", "is no tokenizer"),
        (lambda text: '{"model": {"type": "Nonsense"}}', "cannot be loaded"),
        (lambda text: text.replace("<|s_0|>", "<|z_0|>"), r"has no token '<\|s_0\|>'"),
        (
            lambda text: text.replace("<|SPEECH_GENERATION_END|>", "<|OTHER|>"),
            r"has no token '<\|SPEECH_GENERATION_END\|>'",
        ),
    ],
)
def test_a_damaged_tokenizer_says_what_is_wrong(
    small_bundle: Path, tmp_path: Path, damage, reason: str
) -> None:
    text = (small_bundle / "tokenizer.json").read_text(encoding="utf-8")
    path = tmp_path / "tokenizer.json"
    path.write_text(damage(text), encoding="utf-8")
    with pytest.raises(BundleError, match=reason):
        SpeechTokenizer(path)


def test_a_gap_between_the_speech_tokens_is_seen(small_bundle: Path, tmp_path: Path) -> None:
    data = json.loads((small_bundle / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {token["content"]: token for token in data["added_tokens"]}
    tokens["<|s_7|>"]["content"], tokens["<|s_9|>"]["content"] = "<|s_9|>", "<|s_7|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="have a gap"):
        SpeechTokenizer(tmp_path / "tokenizer.json")


def test_the_number_of_speech_tokens_must_be_the_configs(small_bundle: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has 256 speech tokens, config\.json says 65536"):
        SpeechTokenizer(small_bundle / "tokenizer.json", 65536)


def test_a_template_with_an_unknown_token_is_an_error(tokenizer: SpeechTokenizer) -> None:
    with pytest.raises(TokenizerError, match="NO_SUCH_TOKEN"):
        PromptBuilder(tokenizer, template="<|NO_SUCH_TOKEN|>{text}", context_length=100)


@pytest.mark.parametrize("text", ["你好，世界", "Привет мир", "สวัสดีครับ", "שלום"])
def test_a_text_in_letters_that_the_model_does_not_know_is_an_error(
    demo_bundle: Path, text: str
) -> None:
    tokenizer = SpeechTokenizer(demo_bundle / "tokenizer.json")
    builder = PromptBuilder(tokenizer, template=DEMO_PROMPT, context_length=512)
    with pytest.raises(UnreadableTextError, match="use a voice of its language"):
        builder.build(text)


def test_letters_that_are_left_out_are_said(
    demo_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = SpeechTokenizer(demo_bundle / "tokenizer.json")
    builder = PromptBuilder(tokenizer, template=DEMO_PROMPT, context_length=512)
    builder.build("Mr. O’Neil’s café, 50% off.")
    assert not caplog.records
    builder.build("I like 寿司 a lot.")
    assert "'寿司'" in caplog.text


def test_a_byte_level_tokenizer_knows_every_letter(tokenizer: SpeechTokenizer) -> None:
    assert tokenizer.unknown_letters("Hello, 你好, Привет, שלום 𝔘𝔫𝔦") == ""
