"""tokenizer.json of the built-in voice: characters, with each long run of the template one token.

Llasa's prompt is kept word for word, but its constant sentences would cost a hundred character
tokens a row. They begin with line breaks, which text to be spoken never does, so the pre-tokenizer
can cut them out whole; the role names between control tokens are ordinary characters, since a user
may say "system" too. Text is brought down to what the voice has learned: lower case, no accents,
numbers and some signs in words, other stops as the nearest of those it knows.

    python -m scripts.demo.tokenizer tokenizer.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from phoonnx_llasa.bundle import LLASA_PROMPT

CHARACTERS = " abcdefghijklmnopqrstuvwxyz'.,?!"
CONTROLS = (
    "<|pad|>",
    "<|begin_of_text|>",
    "<|TEXT_UNDERSTANDING_START|>",
    "<|TEXT_UNDERSTANDING_END|>",
    "<|SPEECH_GENERATION_START|>",
    "<|SPEECH_GENERATION_END|>",
    "<|eot_id|>",
)
HEADER = ("<|start_header_id|>", "<|end_header_id|>")
UNKNOWN = "<|unk|>"
FIRST_CHARACTER = len(CONTROLS) + 1
FIRST_HEADER = FIRST_CHARACTER + len(CHARACTERS)
FIRST_CODE = 48
NUM_CODES = 1024
VOCABULARY = FIRST_CODE + NUM_CODES
RUNS = (
    "\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
    "\n\nConvert the text to speech:",
    "\n\n",
)
_ONES = "zero one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_rules() -> Iterator[tuple[str, str]]:
    """Patterns and what they become: whole numbers up to 9,999 as words, longer ones by digits."""
    yield r"(?<=\d),(?=\d{3}(?!\d))", ""  # 1,250
    yield r"(?<=\d)\.(?=\d)", " point "
    yield r"(?<=\d):00(?!\d)", " o'clock "
    yield r"(?<=\d):(?=\d\d(?!\d))", " "
    for digit, word in enumerate(_ONES[1:], 1):
        yield rf"(?<!\d){digit}(?=\d{{3}}(?!\d))", f" {word} thousand "
    for digit, word in enumerate(_ONES[1:], 1):
        yield rf"(?<!\d)0?{digit}(?=\d\d(?!\d))", f" {word} hundred "
    yield r"(?<=d )0+(?!\d)", ""  # what is left of a round hundred or thousand
    yield r"(?<=d )0+(?=\d)", ""
    for digit, word in enumerate(_TEENS):
        yield rf"(?<!\d)1{digit}(?!\d)", f" {word} "
    for digit, word in enumerate(_TENS, 2):
        yield rf"(?<!\d){digit}0(?!\d)", f" {word} "
        yield rf"(?<!\d){digit}(?=\d(?!\d))", f" {word} "
    for digit, word in enumerate(_ONES):
        yield str(digit), f" {word} "


def make_normalizer() -> normalizers.Normalizer:
    """Any text -> the characters of the vocabulary, read as well as that few can.

    Accents go, letters become small, numbers and some signs become words, other stops become the
    nearest of `.,?!`. What is left over becomes a space.
    """
    rules = [
        (r"[’‘ʼ`´]", "'"),
        (r"(?<![a-z])'|'(?![a-z])", ""),  # quotation marks, not apostrophes
        (r"\bmr\.", "mister"),
        (r"\bmrs\.", "missus"),
        (r"\bdr\.", "doctor"),
        (r"%", " percent "),
        (r"&", " and "),
        (r"\+", " plus "),
        (r"=", " equals "),
        (r"(?<=\w)@(?=\w)", " at "),
        *number_rules(),
        (r"[。．]", "."),
        (r"[，、]", ","),
        (r"\.{2,}|…", ","),
        (r"[;:]|--+|[–—―]|(?<= )-(?= )", ","),
        (r"(?<!\A)(?<!\A\n)\n+", " "),  # line breaks stay in front, where the template has them
        (r"[^a-z'.,?!\n]+", " "),
        (r" +(?=[.,?!])", ""),
        (r"(?<=,),+|^[ ,]+", ""),
        (r",(?=[.?!])", ""),
        (r",(?=[a-z])", ", "),
        (r"\A +| +\Z", ""),
    ]
    return normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            *(normalizers.Replace(Regex(pattern), content) for pattern, content in rules),
        ]
    )


def make_tokenizer() -> Tokenizer:
    """Controls, characters, template runs and speech tokens, ids as the constants above say."""
    normalizer = make_normalizer()
    runs = [normalizer.normalize_str(run) for run in RUNS]
    words = {character: FIRST_CHARACTER + i for i, character in enumerate(CHARACTERS)}
    words |= {run: FIRST_HEADER + len(HEADER) + i for i, run in enumerate(runs)}
    # The speech tokens must come after the words; filling the gap keeps every id taken.
    taken = FIRST_HEADER + len(HEADER) + len(runs)
    spare = [UNKNOWN] + [f"<|reserved_{i}|>" for i in range(FIRST_CODE - taken)]
    ids = {token: i for i, token in enumerate(CONTROLS)}
    ids |= {token: FIRST_HEADER + i for i, token in enumerate(HEADER)}
    ids |= dict(zip(spare, [len(CONTROLS), *range(taken, FIRST_CODE)], strict=True))
    ids |= {f"<|s_{i}|>": FIRST_CODE + i for i in range(NUM_CODES)}
    # A BPE without merges: a character that is no token gives no token.
    tokenizer = Tokenizer(models.BPE(vocab=words | ids, merges=[], ignore_merges=True))
    tokenizer.normalizer = normalizer
    pattern = "|".join([*runs, r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ids])
    return tokenizer


def prompt_parts(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids before and after the text."""
    before, after = LLASA_PROMPT.split("{text}")
    return tokenizer.encode(before).ids, tokenizer.encode(after).ids


if __name__ == "__main__":
    make_tokenizer().save(sys.argv[1])
