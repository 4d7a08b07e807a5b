"""The voice that the package ships, and how its tokenizer reads text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from phoonnx_llasa.bundle import LLASA_PROMPT, open_bundle
from phoonnx_llasa.prompt import PromptBuilder, SpeechTokenizer
from phoonnx_llasa.synthesis import Synthesizer

CHARACTERS = " abcdefghijklmnopqrstuvwxyz'.,?!"


@pytest.fixture(scope="module")
def tokenizer(demo_bundle: Path) -> SpeechTokenizer:
    return SpeechTokenizer(demo_bundle / "tokenizer.json")


@pytest.fixture(scope="module")
def voice(demo_bundle: Path) -> Synthesizer:
    return Synthesizer.open(open_bundle(demo_bundle))


def read(tokenizer: SpeechTokenizer, text: str) -> str:
    return "".join(CHARACTERS[token - 8] for token in tokenizer.encode_text(text))


def test_the_bundle_is_small_and_whole(demo_bundle: Path) -> None:
    files = {path.name: path.stat().st_size for path in demo_bundle.iterdir()}
    assert sum(files.values()) < 12_000_000
    assert {"config.json", "model.onnx", "tokenizer.json", "xcodec2_decoder.onnx"} < files.keys()
    config = open_bundle(demo_bundle).config
    assert config.license == "Apache-2.0"
    assert config.single_speaker
    assert config.num_codes == 1024


@pytest.mark.parametrize(
    "text", ["Mind the step.", "It's late, isn't it? No!", "a  b", "THE LAST TRAIN LEAVES AT TEN."]
)
def test_the_prompt_is_llasas_own_with_its_sentences_as_single_tokens(
    demo_bundle: Path, tokenizer, text: str
) -> None:
    config = open_bundle(demo_bundle).config
    assert config.prompt == LLASA_PROMPT
    builder = PromptBuilder(tokenizer, template=config.prompt, context_length=config.context_length)
    ids = builder.build(text).ids
    characters = [8 + CHARACTERS.index(each) for each in " ".join(text.lower().split())]
    assert list(ids[19:-15]) == characters
    assert (ids[0], ids[18], ids[-15], ids[-1]) == (1, 2, 3, 4)
    assert (tokenizer.first_code_id, tokenizer.end_id) == (48, 5)
    whole = Tokenizer.from_file(str(demo_bundle / "tokenizer.json"))
    assert whole.encode(LLASA_PROMPT.replace("{text}", text)).ids == list(ids)


def test_template_words_in_a_text_are_characters(tokenizer) -> None:
    for text in ("system", "user", "assistant", "convert the text to speech"):
        assert read(tokenizer, text) == text


def test_it_has_presets_of_its_own_making(voice: Synthesizer) -> None:
    assert set(voice.voices.presets) == {"calm", "lively", "story"}
    assert voice.voices.default_voice == "calm"
    for preset in voice.voices.presets.values():
        assert preset.synthetic
        assert 80 < len(preset.codes) < 150


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“It’s me,” she said; ‘really?’", "it's me, she said, really?"),
        ("Naïve café — well-known… yes: no", "naive cafe, well known, yes, no"),
        ("wait... what -- no", "wait, what, no"),
        ("(brackets) [and] {others}", "brackets and others"),
        ("50% of A&B", "fifty percent of a and b"),
        ("Mr. Smith and Dr. Jones", "mister smith and doctor jones"),
        ("'tis the dogs' bowl", "tis the dogs bowl"),
        ("one\ttwo\nthree", "one two three"),
        ("at 9:30 or 10:00", "at nine thirty or ten o'clock"),
        ("你好 <|s_5|> <|eot_id|>", "s five eot id"),
        ("日本", ""),
    ],
)
def test_any_text_becomes_the_nearest_known_characters(tokenizer, text: str, expected: str) -> None:
    assert read(tokenizer, text) == expected


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("0", "zero"),
        ("7", "seven"),
        ("10", "ten"),
        ("12", "twelve"),
        ("20", "twenty"),
        ("45", "forty five"),
        ("100", "one hundred"),
        ("105", "one hundred five"),
        ("110", "one hundred ten"),
        ("999", "nine hundred ninety nine"),
        ("1000", "one thousand"),
        ("1,250", "one thousand two hundred fifty"),
        ("1984", "one thousand nine hundred eighty four"),
        ("2005", "two thousand five"),
        ("3016", "three thousand sixteen"),
        ("5060", "five thousand sixty"),
        ("12345", "one two three four five"),
        ("3.5", "three point five"),
    ],
)
def test_numbers_are_read_as_words(tokenizer, number: str, words: str) -> None:
    assert read(tokenizer, f"It is {number}.") == f"it is {words}."


def test_it_speaks_at_a_natural_pace_and_ends_by_itself(voice: Synthesizer) -> None:
    for text in ("The museum opens at nine and closes at five.", "She borrowed my umbrella."):
        blocks = list(voice.synthesize(text, voice.options({"seed": 1})))
        assert not any(block.truncated for block in blocks)
        samples = np.concatenate([block.samples for block in blocks])
        seconds = samples.size / voice.sample_rate
        assert 8 < len(text) / seconds < 24  # characters a second
        assert 0.08 < samples.std() < 0.3
        assert np.isfinite(samples).all()


def test_without_a_preset_it_is_as_loud_as_recorded_speech(voice: Synthesizer) -> None:
    options = voice.options({"seed": 2, "stream": False, "voice": "none"})
    for text in ("Please leave your muddy boots outside the front door.", "Is this seat taken?"):
        (block,) = voice.synthesize(text, options)
        assert 0.5 < np.abs(block.samples).max() < 1.2
