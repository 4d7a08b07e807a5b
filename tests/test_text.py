import itertools
import re
import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phoonnx_llasa.errors import ParameterError
from phoonnx_llasa.text import split_text, spoken_weight

ENGLISH = (
    'Dr. Smith (of the U.S. Army) met Mr. J. R. Jones at 3.30 p.m. on Jan. 5th. "Really?!" she '
    "asked, e.g. because of v1.2.3. It cost $3.14 million! See https://a.example.com/x?y=1&z=2#t "
    "or write to bob.b@example.co.uk. Nobody in Washington D.C. had seen it… What next? No. 5 was "
    "unclear. The well-known author -- who is 80 -- said: wait...what – no."
)
CHINESE = (
    "在中国，茶文化有着悠久的历史。早在几千年前，人们就开始种植茶叶……他说：“普洱茶越陈越香。”"
    "2024年，产量达到3,500,000吨，增长5.3%！你喜欢GPT-4 Turbo吗？我们一边喝茶、一边聊天；很好。"
)
JAPANESE = "「吾輩は猫である。」名前はまだ無い。どこで生れたか、とんと見当がつかぬ！ニャーと。"

WORDS = st.sampled_from(
    [
        *"aZ1é你カー한ß²",
        *" \n\t.,;:!?-…。，、！？」\"'()#*$%+=_/",
        "\u0301", "\u200b", "\u200d", "\ufeff", "\x00", "\r\n", "\n\n", "\u3000", "\u2028",
        "🎉", "👩\u200d💻", "🇩🇪", "👍🏽", "ש", "ب", "क्", "กำ", "\u1100", "\u1161",
        "Mr.", "U.S.", "3.14", "e.g.", "...", "word", "Word ", "你好，", "世界。", "- ",
        "1. ", "# ",
        "a phrase of some length, ", "A sentence that is somewhat long. ", "\nand it goes on\n",
    ]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=60).map("".join) | st.text(max_size=80)


def width(text):
    wide = re.findall(
        "[\u1100-\u11ff\u3005-\u3007\u3400-\u9fff\uac00-\ud7a3ぁ-ゖァ-ヺーヽヾ]", text
    )
    return len(text) + 2 * len(wide)


def is_visible(character):
    if character.isspace() or character in "\u200c\u200d":
        return True
    return unicodedata.category(character) not in {"Cc", "Cf", "Cs"}


def letters(text):
    """What is spoken, in order."""
    visible = "".join(filter(is_visible, text))
    return [c for c in unicodedata.normalize("NFC", visible) if c.isalnum()]


def marks_and_letters(text):
    """The same with all marks, but for what may go: white space, repeats, and added full stops."""
    visible = unicodedata.normalize("NFC", "".join(filter(is_visible, text)))
    kept = "".join(visible.split()).replace(".", "").replace("。", "")
    kept = re.sub("[!?！？｡]{2,}", lambda run: "".join(dict.fromkeys(run[0])), kept)
    return [c for c, run in itertools.groupby(kept) for _ in (run if c.isalnum() else "x")]


@settings(deadline=None, max_examples=300)
@given(text=TEXTS, max_chars=st.sampled_from([100, 140, 300, 1000]))
@example(text="a" * 299 + "!? b", max_chars=300)
@example(text="a" * 300 + ". B", max_chars=300)
@example(text="(" * 3 + "a" * 298 + ") b" * 9, max_chars=300)
@example(text="a" + "\u0301\u0302" * 400 + "b", max_chars=100)
@example(text="\u1100" * 400, max_chars=100)
def test_pieces_hold_what_they_promise(text, max_chars):
    pieces = split_text(text, max_chars)
    for piece in pieces:
        assert any(map(str.isalnum, piece))
        assert width(piece) <= max_chars
        assert piece == " ".join(piece.split()) == unicodedata.normalize("NFC", piece)
        assert split_text(piece, max_chars) == [piece]
    assert [c for piece in pieces for c in letters(piece)] == letters(text)
    if width(text) <= max_chars // 3 and pieces:  # no run of marks that fits into no piece
        assert marks_and_letters(" ".join(pieces)) == marks_and_letters(text)


@settings(deadline=None, max_examples=150)
@given(
    text=st.text("aB1é\u0323\u0307q你カ한 \n.,!?。，\"'()-#%🎉", max_size=60),
    max_chars=st.integers(1, 30),
)
def test_tiny_pieces_lose_no_letter_either(text, max_chars):
    pieces = split_text(text, max_chars)
    for piece in pieces:
        assert any(map(str.isalnum, piece))
        assert split_text(piece, max_chars) == [piece]
        bases = [c for c in piece if unicodedata.category(c)[0] != "M"]
        assert width(piece) <= max_chars or len(bases) == 1
    assert [c for piece in pieces for c in letters(piece)] == letters(text)


@pytest.mark.parametrize(
    ("text", "max_chars", "pieces"),
    [
        ("Hi. " + "word " * 7 + "end.", 30, ["Hi. word word word word word", "word word end."]),
        ("abcdefghijklmnopqrstu", 10, ["abcdefghij", "klmnopqr", "stu"]),
        ("A sentence of some words. And two.", 30, ["A sentence of some", "words. And two."]),
        ("今天我们一起去公园散步了", 33, ["今天我们一起去公", "园散步了"]),
    ],
)
def test_no_short_piece_is_left_over_where_it_can_be_helped(text, max_chars, pieces):
    assert split_text(text, max_chars) == pieces


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, JAPANESE, ENGLISH + CHINESE + ENGLISH])
def test_prose_keeps_every_mark_at_every_width(text):
    for max_chars in range(15, 400, 7):
        pieces = split_text(text * 3, max_chars)
        assert "".join(pieces).replace(" ", "") == (text * 3).replace(" ", "")
        assert max(map(width, pieces)) <= max_chars


@pytest.mark.parametrize(
    "whole",
    [
        "https://a.example.com/x?y=1&z=2#t",
        "bob.b@example.co.uk",
        "3.14",
        "v1.2.3",
        "3.30",
        "3,500,000",
        "5.3%",
        "2024年",
        "GPT-4",
        "well-known",
        "e.g.",
        "U.S.",
        "“普洱茶越陈越香。”",
        '"Really?!"',
    ],
)
def test_numbers_addresses_and_quotes_are_not_cut(whole):
    for max_chars in range(60, 300, 7):
        assert any(whole in piece for piece in split_text(ENGLISH + " " + CHINESE, max_chars))


@pytest.mark.parametrize(
    ("text", "max_chars", "pieces"),
    [
        ("One two. Three four.", 14, ["One two.", "Three four."]),
        ("Stop it now! Who is it? Me.", 16, ["Stop it now!", "Who is it? Me."]),
        ("Mr. J. R. Smith is in. Then he slept.", 30, ["Mr. J. R. Smith is in.", "Then he slept."]),
        ("In the U.S. Army now. It is big.", 22, ["In the U.S. Army now.", "It is big."]),
        ("We live in the U.S. They like it a lot there.", 30,
         ["We live in the U.S.", "They like it a lot there."]),
        ("We saw the U.S. Army there and more", 30, ["We saw the U.S. Army", "there and more"]),
        ("It was by J. R. Smith and his friend", 24, ["It was by J. R. Smith", "and his friend"]),
        ("We all stay in room No. 5 over there", 26, ["We all stay in room No. 5", "over there"]),
        ("It is $3.14, i.e. much. Too much.", 26, ["It is $3.14, i.e. much.", "Too much."]),
        ("It is No. 5 and fig. 3. Not fig. 6.", 26, ["It is No. 5 and fig. 3.", "Not fig. 6."]),
        ('He said "Go now." (She did.) Sleep.', 19, ['He said "Go now."', "(She did.) Sleep."]),
        ('"Stop it!" he said to them. Then he left.', 30, ['"Stop it!" he said to them.',
                                                         "Then he left."]),
        ('"Stop that now!" he said, and went', 25, ['"Stop that now!" he said,', "and went"]),
        ("He saw it. (as he said, now) The end", 23, ["He saw it. (as he said,", "now) The end"]),
        ("The one book--it is very long", 25, ["The one book--", "it is very long"]),
        ("And then, one two three four five six seven", 30,
         ["And then, one two three four", "five six seven"]),
        ("a long beginning, then more; and an end to it", 30,
         ["a long beginning, then more;", "and an end to it"]),
        ("He waited... and waited for it... Then The End came.", 44,
         ["He waited... and waited for it...", "Then The End came."]),
        ("abcde fghij klm", 5, ["abcde", "fghij", "klm"]),
        ("aaa bbb #%#", 8, ["aaa", "bbb #%#"]),
        ("我们生产了3，500吨的", 21, ["我们生产", "了3，500吨的"]),
        ("one two three four five six seven", 20, ["one two three four", "five six seven"]),
        ("abcdefghijklmnopqrstuvwxyz", 10, ["abcdefghij", "klmnopqrst", "uvwxyz"]),
        ("你好吗？我很好。再见！", 15, ["你好吗？", "我很好。", "再见！"]),
        ("他说：「你好。」然后走了。", 22, ["他说：「你好。」", "然后走了。"]),
        ("今天很好，我们去公园；然后回家吧", 34, ["今天很好，我们去公园；", "然后回家吧"]),
        ("他有3.5元.今天,我们去公园!好吗?", 23, ["他有3.5元.", "今天,我们去公园!", "好吗?"]),
        ("使用GPT模型处理任务", 20, ["使用GPT模型处", "理任务"]),
        ("مرحبا كيف حالك؟ أنا بخير اليوم.", 20, ["مرحبا كيف حالك؟", "أنا بخير اليوم."]),
        ("नमस्ते दुनिया। आप कैसे हैं।", 18, ["नमस्ते दुनिया।", "आप कैसे हैं।"]),
    ],
)  # fmt: skip
def test_where_a_text_is_cut(text, max_chars, pieces):
    assert split_text(text, max_chars) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One.\n\nTwo.", ["One.", "Two."]),
        ("One.\r\n \r\nTwo.", ["One.", "Two."]),
        ("One.\n\u200b\nTwo.", ["One.", "Two."]),
        ("One.\fTwo.\u2029Three.", ["One.", "Two.", "Three."]),
        ("# Title\n\nA body follows here.", ["# Title", "A body follows here."]),
        ("A title that is long\nThe body of the text.",
         ["A title that is long", "The body of the text."]),
        ("- two cups of flour\n- a litre of milk\n* bake it for an hour",
         ["- two cups of flour", "- a litre of milk", "* bake it for an hour"]),
        ("1. Heat the oven well\n2. Bake it for an hour",
         ["1. Heat the oven well", "2. Bake it for an hour"]),
        ("milk\neggs\nbread", ["milk. eggs. bread"]),
        ("苹果\n香蕉\n梨", ["苹果。香蕉。梨"]),
        ("Best,\nAlice", ["Best, Alice"]),
        ("A title of more than forty characters, all said\nThe body of the text follows.",
         ["A title of more than forty characters, all said", "The body of the text follows."]),
        ("今天我们一起去公园散步然后吃饭吧\n今天我们一起去公园\n今天我们一起去公园散步",
         ["今天我们一起去公园散步然后吃饭吧", "今天我们一起去公园", "今天我们一起去公园散步"]),
        ("Name: Bob\nAge: 5 (five)\nEnd", ["Name: Bob. Age: 5 (five). End"]),
        ("I never thought that we\nwould end up here.",
         ["I never thought that we would end up here."]),
        ("This is about the well-\nknown exam-\nple.", ["This is about the well-known exam-ple."]),
        ("Column one\tcolumn\u00a0two\u3000three", ["Column one column two three"]),
    ],
)  # fmt: skip
def test_lines(text, pieces):
    assert split_text(text) == pieces


def test_wrapped_prose_is_joined_and_its_last_line_is_not_lost():
    text = (
        "It was the best of times, it was the worst of times, it\n"
        "was the age of wisdom, it was the age of Foolishness and\n"
        "Light.\n"
        "It was the spring of hope."
    )
    assert split_text(text, 80) == [
        "It was the best of times, it was the worst of times, it was the age of wisdom,",
        "it was the age of Foolishness and Light.",
        "It was the spring of hope.",
    ]


def test_a_wrapped_item_of_a_list_ends_where_the_next_begins():
    text = (
        "- two cups of the best flour that you find\n"
        "at the mill behind your own town, near by\n"
        "- a litre of the best milk"
    )
    assert split_text(text) == [
        "- two cups of the best flour that you find at the mill behind your own town, near by",
        "- a litre of the best milk",
    ]


def test_wrapped_chinese_is_joined_without_a_space():
    line = "我们今天早上一起去公园里面散步然后回家吃饭"
    assert split_text(f"{line}\n{line}\n{line[:5]}") == [line + line + line[:5]]


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("Wow!!!!! Really???", "Wow! Really?"),
        ("What?!?!?! Yes!?", "What?! Yes!?"),
        ("好。。。走，，吧！！", "好。走，吧！"),
        ("Well..... yes.. no...", "Well... yes.. no..."),
        ("我…………走———吧", "我……走——吧"),
        ("C++ at http://x.y/__init__ **bold** -- ok", "C++ at http://x.y/__init__ **bold** -- ok"),
        ("Title ======== ____ \u2588\u2588\u2588\u2588\u2588 end", "Title = _ \u2588 end"),
        ("100,000", "100,000"),
    ],
)
def test_repeats_of_punctuation_collapse(text, piece):
    assert split_text(text) == [piece]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " \n\t",
            "...",
            "?!",
            "。。。",
            "🎉🎉",
            "👩\u200d💻",
            "—",
            "\u200b\ufeff",
            "- \n* \n",
            "\x00",
        ),
        *("\u0301", "$", "#" * 5000, "!?" * 10_000),
    ],
)
def test_nothing_to_speak_gives_no_piece(text):
    assert split_text(text) == []


@pytest.mark.parametrize(
    "text", ["7", "a", "好", "한", "No.", "é", "²", "1️⃣", "HELLO", "<|eot_id|>", "שלום", "a\u200db"]
)
def test_the_shortest_text_is_one_piece(text):
    assert split_text(text) == [text]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Great!\n\n🎉🎉\n\nBye now.", ["Great! 🎉🎉", "Bye now."]),
        ("***\n\nStart.\n---\n\nEnd.", ["*** Start. ---", "End."]),
        ("\ufeffHello\u200b wor\u00adld\x07!", ["Hello world!"]),
        ("e\u0301te\u0301", ["été"]),
        ("lone \ud800 surrogate", ["lone surrogate"]),
    ],
)
def test_marks_go_with_a_neighbour_and_invisible_characters_go(text, pieces):
    assert split_text(text) == pieces


def test_more_marks_than_a_piece_holds_are_silence():
    noise = "#$%&" * 100
    pieces = split_text(f"One {noise} two")
    assert letters("".join(pieces)) == list("Onetwo")
    assert all(len(piece) <= 300 and re.search("One|two", piece) for piece in pieces)


@pytest.mark.parametrize(
    "characters",
    [
        ["q\u0323\u0307"],
        ["👍🏽", "a\u0331"],
        ["👩\u200d💻", "b"],
        ["क्षि"],
        ["กำ"],
        ["🇩🇪", "b"],
        ["\u1100\u119e\u11a8"],
    ],
)
def test_what_belongs_to_a_character_is_not_cut_off(characters):
    for max_chars in range(9, 30):
        pieces = split_text("".join(characters) * 30, max_chars)
        assert len(pieces) > 1
        for piece in pieces:
            assert re.fullmatch(f"(?:{'|'.join(characters)})+", piece)


HOSTILE = {
    "letters": "a" * 20_000,
    "Chinese": "你" * 20_000,
    "combining marks": "a" + "\u0301\u0302" * 10_000,
    "dots and spaces": "a. " * 6_667,
    "alternating stops": "…!" * 10_000 + "a",
    "alternating commas": ",;" * 10_000 + "a",
    "closers": ",)" * 10_000 + "a",
    "openers": ". " + "(" * 20_000 + "a",
    "unspeakable lines": "a\n" + "-\n" * 10_000,
    "short lines": "a\n" * 10_000,
    "flags": "a" + "🇩🇪" * 10_000 + "b",
    "joiners": "a\u200d" * 10_000,
    "one abbreviation": "a." * 10_000 + " b",
    "symbols": "#$%" * 3_333 + "a" + "#$%" * 3_333,
    "jamo": "\u1100" * 20_000,
    "digits": "1234567890" * 2_000,
    "words": "word " * 4_000,
    "blank lines": "\n" * 20_000 + "a",
    "dashes": "-–" * 10_000 + "a",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_twenty_thousand_characters_of_anything_take_no_time(name):
    text = HOSTILE[name]
    started = time.perf_counter()
    pieces = split_text(text)
    # 0.02 to 0.2 s on one slow core; a step that is quadratic takes 5 s and more
    assert time.perf_counter() - started < 2
    assert [c for piece in pieces for c in letters(piece)] == letters(text)
    assert all(width(piece) <= 300 for piece in pieces)


@pytest.mark.parametrize("max_chars", [0, -5])
def test_a_width_without_room_is_refused(max_chars):
    with pytest.raises(ParameterError, match="max_chars"):
        split_text("a", max_chars)


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("", 0),
        ("a", 1),
        ("Hello, world.", 13),
        ("你好", 6),
        ("カタ한국", 12),
        ("7", 8),
        ("五", 3),
        ("50 %", 8 + 8 + 1 + 6),
        ("a+b=$", 1 + 6 + 1 + 6 + 6),
        ("ok 🎉\u0301\u200b", 3),
    ],
)
def test_spoken_weight_is_in_letters(text, weight):
    assert spoken_weight(text) == weight


@given(first=st.text(max_size=20), second=st.text(max_size=20))
@settings(deadline=None, max_examples=50)
def test_spoken_weights_add_up(first, second):
    assert spoken_weight(first + second) == spoken_weight(first) + spoken_weight(second)
