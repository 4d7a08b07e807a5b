"""Text as users type it -> pieces to speak one after the other.

quebra-frases, the host's splitter, ends no sentence at "!" or in Chinese and one at "J. R. Smith".
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, pairwise
from typing import Final

from phoonnx_llasa.errors import ParameterError

#: Pieces narrower than this (about a second of speech) are avoided where something can be done:
#: a codec language model speaks a single word worse than a phrase.
_SHORT: Final = 15
#: Nobody wraps prose at fewer columns: a shorter line ends where its author wanted it to.
_NARROWEST_WRAP: Final = 40
#: A line of so many words that goes on in lower case is prose wrapped all the same (subtitles).
_WORDS_OF_PROSE: Final = 4
#: Combining marks that belong to one character at most (UAX #15, stream-safe text format).
_MOST_MARKS: Final = 30

_SENTENCE, _CLAUSE, _WORD = 2, 1, 0

_HAN_KANA: Final = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u3096\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9d\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_HANGUL: Final = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb\uffa0-\uffdc"
_SMALL_KANA: Final = "ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ々ゝゞヽヾ"

_HARD_STOPS: Final = "。！？｡‼⁇⁈⁉‽।॥؟۔։።။"  # end a sentence whatever follows
_STOPS: Final = ".!?…．" + _HARD_STOPS
_COMMAS: Final = ",;:،؛"
_WIDE_COMMAS: Final = "，、；：､"
_DASHES: Final = "-–—―"
_CLOSERS: Final = "\"'”’»›)]}」』）】》〉〕］｝＂＇"
_OPENERS: Final = "\"'“‘«‹([{「『（【《〈〔［｛¿¡"
#: Symbols that are read as words, besides those of Unicode's categories Sm and Sc.
_READ_SYMBOLS: Final = "%‰&@#/\\_§°©®™№℃℉"
_NOT_FIRST: Final = _STOPS + _COMMAS + _WIDE_COMMAS + _CLOSERS + " "

_WIDE: Final = re.compile(f"[{_HAN_KANA}{_HANGUL}]")
_NO_SPACES: Final = re.compile(f"[{_HAN_KANA}]")
#: Between two words of a script without spaces, as far as can be told without a dictionary.
_BETWEEN_HAN: Final = re.compile(
    f"(?<=[{_HAN_KANA}])(?![{_SMALL_KANA}])(?=[{_HAN_KANA}A-Za-z])|(?<=[A-Za-z])(?=[{_HAN_KANA}])"
)
_MARKS: Final = re.compile(
    f"([{re.escape(_STOPS + _COMMAS + _WIDE_COMMAS)}]+|[{_DASHES}]+)[{re.escape(_CLOSERS)}]* ?"
)
_LIST_ITEM: Final = re.compile(
    r"(?:[-+*•◦▪‣·●○■□–—]|#{1,6}|\(?\d{1,3}[.)]|\(?[A-Za-z]\))\s|[①-⑳]"
    r"|[（(]?(?:\d{1,3}|[一二三四五六七八九十]{1,3})[、）．]"
)
#: Some marks are doubled with a meaning ("://", "C++", "**"): only longer runs are ornaments.
_REPEATS: Final = re.compile(r"\.{3,}|…{2,}|—{2,}|([,;，、；：､])\1+|([^\w\s.…—]|_)\2{3,}")
#: How many are kept of a run: "…" and "—" are written twice in Chinese.
_KEPT: Final = {".": 3, "…": 2, "—": 2}
_MIXED_STOPS: Final = re.compile("[!?！？。｡]{2,}")
#: What belongs to the character before it without being a mark in Unicode's categories: joiners,
#: Thai and Lao AM, voicing marks of half-width kana, skin tones.
_EXTENDERS: Final = (
    "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
)
_FIRST_JAMO: Final = re.compile("[\u1100-\u115f\ua960-\ua97c]")
_LATER_JAMO: Final = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb]")
_HALF_FLAG: Final = re.compile("[\U0001f1e6-\U0001f1ff]")
_VIRAMA: Final = 9  # canonical combining class
_ALNUM: Final = re.compile(r"\w+")

# Abbreviations without their last dot. A stop that is missed costs nothing, one too many a pause.
_BEFORE_NAME: Final = re.compile(
    "mr|mrs|ms|mx|dr|prof|rev|hon|gen|col|maj|capt|cmdr|lt|sgt|gov|sen|rep|pres|st|mt|ft|messrs|"
    r"mme|mlle|vs|e\.g|i\.e|cf|viz|approx|ca"
)
_BEFORE_NUMBER: Final = re.compile("nos?|vols?|figs?|pp?|ch|sec|art|eq|ver|v|op")
_MAY_END: Final = re.compile(
    "etc|inc|ltd|co|corp|bros|jr|sr|dept|est|al|ave|blvd|rd|jan|feb|mar|apr|jun|jul|aug|sept?|oct|"
    r"nov|dec|mon|tues?|wed|thu|thurs|fri|[^\W\d_]|(?:[a-z]{1,3}\.)+[a-z]{1,3}"
)
#: What, with a capital, begins a sentence: "in the U.S. The" but not "the U.S. Army".
_STARTER: Final = re.compile(
    "An?|The|Th(?:is|at|ese|ose|ere|en|ey|eir)|Here|However|He|She|His|Her|It|Its|We|You|I|My|Our|"
    "But|And|So|Or|If|In|On|At|As|For|To|With|When|While|After|Before|Wh(?:at|o|y|ere|ich)|How|Is|"
    "Are|Was|Were|Do|Does|Did|Not?|Yes|Please"
)


def spoken_weight(text: str) -> float:
    """How long a text is to say, in average Latin letters (about 13 a second).

    A Chinese, Japanese or Korean character counts 3, a digit 8 ("1" can be "one hundred"), a
    symbol read as a word ("%", "+") 6, other letters, white space and punctuation 1 (a pause),
    emoji, combining marks and invisible characters 0.
    """
    return sum(_weight(character) * count for character, count in Counter(text).items())


def split_text(text: str, max_chars: int = 300) -> list[str]:
    """Split a text into pieces to speak, each with a letter or a digit in it.

    Blank lines and line ends that are not just wrapped prose end a piece; otherwise sentences are
    packed together. A sentence too long is cut between clauses, then words, then characters. Very
    short lines share a piece and get a full stop between them where they lack one.

    Nothing is lost but white space, control and invisible characters, repeats of punctuation ("!!!"
    is "!", "....." is "...") and marks with nothing to speak that fit into no piece: silence.

    Args:
        text: anything.
        max_chars: width of a piece. A Chinese, Japanese or Korean character is 3 wide, any other 1.
            Only a single character with its combining marks can be wider.

    Returns:
        The pieces in order, NFC, without line ends; none where there is nothing to speak.

    Raises:
        ParameterError: `max_chars` is below 1.
    """
    if max_chars < 1:
        raise ParameterError("max_chars", max_chars, "a whole number of at least 1")
    return [piece for unit in _units(text, max_chars) for piece in _cut(unit, max_chars)]


def _weight(character: str) -> float:
    category = unicodedata.category(character)
    if _WIDE.match(character):
        return 3.0
    if category[0] == "N":
        return 8.0
    if category in {"Sm", "Sc"} or character in _READ_SYMBOLS:
        return 6.0
    if category[0] in "LPZ" or category in {"Mc", "Sk"} or character.isspace():
        return 1.0
    return 0.0


def _width(text: str) -> int:
    return len(text) + 2 * len(_WIDE.findall(text))


def _has_speech(text: str) -> bool:
    return any(map(str.isalnum, text))


# Lines


def _units(text: str, limit: int) -> list[str]:
    """What must not be packed together: paragraphs, list items, headings."""
    units: list[list[str]] = []
    width = 0  # of the last unit
    leading: list[str] = []  # marks before the first thing to speak
    for paragraph in _paragraphs(text):
        joinable = False
        for line in _unwrap(paragraph):
            more = 1 + _width(line)
            if not _has_speech(line):
                (units[-1] if units else leading).extend((" ", line))
                width += more
                continue
            if joinable and min(width, more) <= _SHORT and width + more <= limit:
                stop = _missing_stop(units[-1][-1])
                units[-1].extend((stop, _glue(stop or units[-1][-1], line), line))
                width += len(stop) + more
            else:
                units.append([*leading, " ", line])
                width = more
                leading = []
            joinable = True
    return ["".join(unit).strip() for unit in units]


def _paragraphs(text: str) -> Iterator[list[str]]:
    lines = map(_clean, text.replace("\f", "\n\n").replace("\u2029", "\n\n").splitlines())
    for filled, group in groupby(lines, bool):
        if filled:
            yield list(group)


def _clean(line: str) -> str:
    # Normalizing sorts the marks of a character, which takes the square of their number.
    visible = "".join(_few_marks(filter(_is_visible, line)))
    spaced = " ".join(unicodedata.normalize("NFC", visible).split())
    single = _MIXED_STOPS.sub(lambda run: "".join(dict.fromkeys(run[0])), spaced)
    return _REPEATS.sub(lambda run: run[0][: _KEPT.get(run[0][0], 1)], single)


def _few_marks(characters: Iterable[str]) -> Iterator[str]:
    marks = 0
    for character in characters:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= _MOST_MARKS:
            yield character


def _is_visible(character: str) -> bool:
    if character.isspace() or character in "\u200c\u200d":  # the joiners hold clusters together
        return True
    return unicodedata.category(character) not in {"Cc", "Cf", "Cs"}


def _unwrap(lines: list[str]) -> Iterator[str]:
    """Join the lines that only the width of a page has parted."""
    widths = [_width(line) for line in lines]
    page = max(*widths, _NARROWEST_WRAP)
    is_full = [
        w + 1 + _width(_first_word(n)) > page for w, n in zip(widths, lines[1:], strict=False)
    ]
    # Items may be as long as lines of prose, but seldom all of them, and they rarely go on small.
    is_prose = any(line[0].islower() for line in lines[1:]) or (len(is_full) > 1 and all(is_full))
    parts = [lines[0]]
    for (before, after), full in zip(pairwise(lines), is_full, strict=True):
        if _goes_on(before, after, is_wrapped=full and is_prose):
            parts.append("" if _is_hyphenated(before, after) else _glue(before, after))
        else:
            yield "".join(parts)
            parts.clear()
        parts.append(after)
    yield "".join(parts)


def _first_word(line: str) -> str:
    return line[0] if _NO_SPACES.match(line) else line.split(" ", 1)[0]


def _goes_on(before: str, after: str, *, is_wrapped: bool) -> bool:
    if before[0] == "#" or _LIST_ITEM.match(after):
        return False
    if not (_has_speech(before) and _has_speech(after)):
        return False
    if is_wrapped or _is_hyphenated(before, after):
        return True
    is_open = after[0].islower() and before[-1] not in _STOPS + ":"
    return is_open and before.count(" ") >= _WORDS_OF_PROSE - 1


def _is_hyphenated(before: str, after: str) -> bool:
    return before[-1] == "-" and before[-2:-1].isalpha() and after[0].islower()


def _glue(before: str, after: str) -> str:
    is_chinese = before[-1] in _HARD_STOPS + _WIDE_COMMAS or _NO_SPACES.match(before[-1])
    return "" if is_chinese and _NO_SPACES.match(after) else " "


def _missing_stop(line: str) -> str:
    bare = line.rstrip(_CLOSERS)
    last = bare[-1:] or line[-1]
    if not last.isalnum() and unicodedata.category(last)[0] == "P":
        return ""
    return "。" if _NO_SPACES.match(last) else "."


# Pieces


def _cut(text: str, limit: int) -> list[str]:
    """Pieces of one unit: each ends at the last of the strongest breaks that fits."""
    ends = list(accumulate((3 if _WIDE.match(c) else 1 for c in text), initial=0))
    if ends[-1] <= limit:
        return [text]
    spoken = [place for place, character in enumerate(text) if character.isalnum()]
    breaks = _breaks(text)
    pieces: list[str] = []
    start = 0
    while start <= spoken[-1]:
        first = spoken[bisect_left(spoken, start)]
        if ends[_character_end(text, first)] - ends[start] > limit:
            start = first  # more marks than a piece can hold: silence
        end = len(text)
        if ends[-1] - ends[start] > limit:
            end = _end_of_piece(text, ends, breaks, start, limit, first, spoken[-1])
        pieces.append(text[start:end].strip())
        start = end
    return pieces


def _end_of_piece(
    text: str,
    ends: list[int],
    breaks: tuple[list[int], list[int], list[int]],
    start: int,
    limit: int,
    first: int,
    last: int,
) -> int:
    """Where the piece from `start` ends.

    Args:
        ends: width of the text before each place.
        breaks: the places of each strength, ascending.
        first: the first letter or digit of the piece.
        last: the last one of the text, which the next piece needs.
    """
    reach = bisect_right(ends, ends[start] + limit) - 1
    if text[reach] == " ":  # the space behind a piece is not part of it
        reach += 1
    high = min(reach, last)
    short = min(_SHORT, limit // 3)
    early = bisect_left(ends, ends[start] + short)
    late = bisect_right(ends, ends[-1] - short) - 1
    half = bisect_left(ends, ends[start] + limit // 2)
    # Neither a short piece nor a short rest; and a clause that ends early would waste the piece.
    for strength, lowest in ((_SENTENCE, early), (_CLAUSE, half), (_WORD, half)):
        found = _last_between(breaks[strength], max(lowest, first + 1), min(high, late))
        if found:
            return found
    for strength in (_SENTENCE, _CLAUSE, _WORD):
        found = _last_between(breaks[strength], first + 1, high)
        if found:
            return found
    for highest, behind in ((min(high, late), _NOT_FIRST), (high, ""), (reach, "")):
        for end in range(highest, first, -1):
            if text[end] not in behind and not _is_joined(text, end):
                return end
    return _character_end(text, first)  # wider than a piece


def _last_between(places: list[int], low: int, high: int) -> int:
    """The last place from `low` to `high`; 0 if there is none."""
    found = bisect_right(places, high)
    return places[found - 1] if found and places[found - 1] >= low else 0


def _breaks(text: str) -> tuple[list[int], list[int], list[int]]:
    """Where words, clauses and sentences end: the place behind the mark and its space."""
    places: tuple[list[int], list[int], list[int]] = ([], [], [])
    for mark in _MARKS.finditer(text):
        strength = _strength(text, mark) if mark.end() < len(text) else None
        if strength is not None and not _is_joined(text, mark.end()):
            places[strength].append(mark.end())
    words = [place + 1 for place, character in enumerate(text[:-1]) if character == " "]
    words += [between.start() for between in _BETWEEN_HAN.finditer(text)]
    places[_WORD].extend(place for place in sorted(words) if not _is_joined(text, place))
    return places


def _strength(text: str, mark: re.Match[str]) -> int | None:
    """What ends with a run of marks that has something behind it."""
    start, end, marks = mark.start(), mark.end(), mark[1]
    before, after, last = text[start - 1 : start], text[end], marks[-1]
    is_spaced = text[end - 1] == " "
    if any(mark in _HARD_STOPS for mark in marks):
        return _SENTENCE
    if last in _WIDE_COMMAS + "．":
        is_number = before.isdigit() and after.isdigit()
        return None if is_number else _SENTENCE if last == "．" else _CLAUSE
    if last in _DASHES:
        spaces = (before == " ", is_spaced)
        is_dash = last in "—―" or all(spaces) or (len(marks) > 1 and not any(spaces))
        return _CLAUSE if is_dash else None
    if last in _COMMAS:
        return _CLAUSE if is_spaced or _NO_SPACES.match(after) else None
    if last == "…" or marks.endswith("..."):
        return _SENTENCE if is_spaced and text[_skip_openers(text, end)].isupper() else _CLAUSE
    return _after_stop(text, before, mark)


def _after_stop(text: str, before: str, mark: re.Match[str]) -> int | None:
    """The same for full stops, question and exclamation marks of scripts with spaces."""
    start, end, marks = mark.start(), mark.end(), mark[1]
    if text[end - 1] != " ":
        is_chinese = _NO_SPACES.match(text[end]) and (marks != "." or _NO_SPACES.match(before))
        return _SENTENCE if is_chinese else None  # else in a number, an address, a name
    following = _skip_openers(text, end)
    if marks == "." and _is_abbreviation(text, start, following):
        return None
    return _CLAUSE if text[following].islower() else _SENTENCE


def _skip_openers(text: str, place: int) -> int:
    while place < len(text) - 1 and text[place] in _OPENERS:
        place += 1
    return place


def _is_abbreviation(text: str, dot: int, following: int) -> bool:
    """Whether the full stop at `dot` only shortens a word; `following` is where the next begins."""
    begin = dot
    while begin and (text[begin - 1] == "." or text[begin - 1].isalnum()):
        if _NO_SPACES.match(text[begin - 1]):
            break
        begin -= 1
    word = text[begin:dot].lower()
    if _BEFORE_NAME.fullmatch(word):
        return True
    if _BEFORE_NUMBER.fullmatch(word) and text[following].isdigit():
        return True
    starter = _ALNUM.match(text, following)
    starts = starter is not None and _STARTER.fullmatch(starter[0])
    return bool(_MAY_END.fullmatch(word)) and not starts


# Characters


def _is_joined(text: str, place: int) -> bool:
    """Whether a cut before `place` would part a character from what belongs to it (UAX #29)."""
    if not _attaches(text, place):
        return False
    start = max(place - _MOST_MARKS, 0)
    return not all(_attaches(text, earlier) for earlier in range(start, place))


def _character_end(text: str, place: int) -> int:
    place += 1
    while _is_joined(text, place):
        place += 1
    return place


def _attaches(text: str, place: int) -> bool:
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if before.isascii() and after.isascii():
        return False
    if unicodedata.category(after)[0] == "M" or before == "\u200d" or after in _EXTENDERS:
        return True
    if _HALF_FLAG.match(before) and _HALF_FLAG.match(after):
        begin = place
        while begin and _HALF_FLAG.match(text[begin - 1]):
            begin -= 1
        return (place - begin) % 2 == 1
    if unicodedata.combining(before) == _VIRAMA:
        return after.isalpha()
    return bool(
        _LATER_JAMO.match(after) or (_FIRST_JAMO.match(before) and _FIRST_JAMO.match(after))
    )
