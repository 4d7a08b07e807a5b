"""`phoonnx-llasa say`: where text comes from, where sound goes, and what is left when it fails."""

import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_world import own_folders
from click.testing import CliRunner, Result

from phoonnx_llasa.cli import cli
from phoonnx_llasa.commands import progress, requests, sinks, speaking
from phoonnx_llasa.commands.names import FileNames, slug, stem_of
from phoonnx_llasa.commands.say import say as say_command
from phoonnx_llasa.errors import InputError, ParameterError
from phoonnx_llasa.options import PARAMETERS
from phoonnx_llasa.wav import wav_header

COMMAND = [sys.executable, "-c", "from phoonnx_llasa.cli import main; main()"]
#: Speaks little whatever the random model wants, and always the same.
SHORT = ("--seed", "3", "--max-new-tokens", "12")
SHORT_PARAMS = {"seed": 3, "max_new_tokens": 12}
#: A player that keeps what it hears.
KEEPS = "sh -c 'cat > heard'"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    with own_folders(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.fixture
def say(small_bundle: Path) -> Callable[..., Result]:
    """Call `say` with the small model."""

    def call(*arguments: str | Path, stdin: object = None) -> Result:
        words = ["say", "-m", str(small_bundle), *SHORT, *map(str, arguments)]
        return CliRunner().invoke(cli, words, input=stdin)  # type: ignore[arg-type]

    return call


@functools.cache
def voice_of(bundle: Path):
    from phoonnx_llasa import LlasaVoice

    return LlasaVoice.from_folder(bundle)


def spoken(bundle: Path, text: str, **extra_params: object) -> bytes:
    """What the Python API makes of the same request."""
    from phoonnx.config import SynthesisConfig

    config = SynthesisConfig(extra_params=SHORT_PARAMS | extra_params)
    chunks = voice_of(bundle).synthesize(text, syn_config=config)
    return b"".join(chunk.audio_int16_bytes for chunk in chunks)


def samples_of(path: Path | str) -> bytes:
    with wave.open(str(path)) as sound:
        assert sound.getparams()[:3] == (1, 2, 16_000)
        return sound.readframes(sound.getnframes())


def files_in(folder: Path | str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


# Text as it comes


@pytest.fixture
def pipe() -> Iterator[tuple[io.BufferedReader, io.FileIO]]:
    """Both ends of a pipe, for a text that somebody writes while it is spoken."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield reader, writer


@pytest.mark.parametrize("mode", [(), ("--lines",)])
def test_a_line_is_heard_before_the_next_one_is_written(
    say, small_bundle: Path, pipe, mode: tuple[str, ...]
):
    """The next line is written only when the first is in the file: whoever waits, hangs."""
    reader, writer = pipe
    first = spoken(small_bundle, "It rains.")
    heard_first: list[int] = []

    def write() -> None:
        writer.write(b"It rains.\n")
        deadline = time.monotonic() + 180
        while not heard_first and time.monotonic() < deadline:
            heard_first.extend(
                size
                for path in Path().glob(".*.part")
                if (size := path.stat().st_size) == 44 + len(first)
            )
            time.sleep(0.01)
        writer.write(b"Good morning.\n")
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    result = say("-o", "out.wav", *mode, stdin=reader)
    thread.join()
    assert result.exit_code == 0, result.output
    assert heard_first
    assert samples_of("out.wav")[: len(first)] == first
    assert len(samples_of("out.wav")) > len(first)


def test_a_wrapped_text_in_a_pipe_sounds_like_the_file(say, small_bundle: Path, pipe):
    text = (
        "The rain had stopped before the\nmorning came, and nobody had\nseen it.\n\nIt was over.\n"
    )
    reader, writer = pipe
    writer.write(text.encode())
    writer.close()
    assert say("-o", "pipe.wav", stdin=reader).exit_code == 0
    Path("story.txt").write_text(text)
    with Path("story.txt").open("rb") as stream:
        assert say("-o", "redirected.wav", stdin=stream).exit_code == 0
    assert say("-o", "file.wav", "-i", "story.txt").exit_code == 0
    assert samples_of("pipe.wav") == spoken(small_bundle, text)
    assert samples_of("redirected.wav") == samples_of("pipe.wav")
    assert samples_of("file.wav") == samples_of("pipe.wav")


def test_paragraphs_that_come_one_by_one_sound_like_the_whole_text(say, small_bundle: Path, pipe):
    """One seed, and one invented speaker, for all of it."""
    paragraphs = ["It rains.\n\n", "Nobody came that day.\n\n", "Good night.\n"]
    reader, writer = pipe
    parts = requests._parts(reader, "pipe", wait=False)
    heard = []
    for paragraph in paragraphs:
        writer.write(paragraph.encode())
        heard.append(next(parts).decode())
    writer.close()
    assert [*heard, *parts] == paragraphs

    options = voice_of(small_bundle).synthesizer.options(SHORT_PARAMS | {"voice": "none"})
    synthesizer = voice_of(small_bundle).synthesizer
    parted = [block.codes for block in synthesizer.synthesize_parts(paragraphs, options)]
    whole = [block.codes for block in synthesizer.synthesize("".join(paragraphs), options)]
    assert parted == whole


def test_whole_waits_for_the_end(say, pipe, monkeypatch: pytest.MonkeyPatch):
    reader, writer = pipe
    monkeypatch.setattr(requests, "_TOGETHER", 0.0)
    monkeypatch.setattr(requests, "_LONGEST_WAIT", 0.0)
    writer.write(b"One.\nTwo.\n")
    live = requests._parts(reader, "pipe", wait=False)
    assert next(live) == b"One.\nTwo.\n"
    writer.write(b"Three.\nFour")
    threading.Timer(0.1, lambda: (writer.write(b" and five."), writer.close())).start()
    assert list(requests._parts(reader, "pipe", wait=True)) == [b"Three.\nFour and five."]


def test_a_program_that_writes_without_end_is_heard_all_the_same(
    pipe, monkeypatch: pytest.MonkeyPatch
):
    reader, writer = pipe
    monkeypatch.setattr(requests, "_TOGETHER", 60.0)
    monkeypatch.setattr(requests, "_LONGEST_WAIT", 0.05)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.01):
            writer.write(b"tick\n")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        first = next(requests._parts(reader, "pipe", wait=False))
    finally:
        stop.set()
        thread.join()
    assert first == b"tick\n" * (len(first) // 5)


def test_half_a_line_is_not_spoken(pipe, monkeypatch: pytest.MonkeyPatch):
    reader, writer = pipe
    monkeypatch.setattr(requests, "_TOGETHER", 0.0)
    writer.write("Grüße.\nHalf a w".encode())
    parts = requests._parts(reader, "pipe", wait=False)
    assert next(parts).decode() == "Grüße.\n"
    writer.write(b"ord.\n")
    assert next(parts) == b"Half a word.\n"


def test_a_long_file_is_parted_between_paragraphs_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(requests, "_PART_BYTES", 100)
    monkeypatch.setattr(requests, "_CHUNK_BYTES", 30)
    paragraphs = [f"Paragraph {n}: {'word ' * (n % 7)}\nand on.\n\n" for n in range(50)]
    Path("book.txt").write_text("".join(paragraphs))
    with Path("book.txt").open("rb") as stream:
        parts = list(requests._parts(stream, "book.txt", wait=False))
    assert b"".join(parts) == "".join(paragraphs).encode()
    assert len(parts) > 5
    assert all(part.endswith(b"\n\n") for part in parts)
    assert max(map(len, parts)) < 200


def test_a_line_without_end_is_refused(say, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "_LINE_BYTES", 100)
    result = say("-o", "out.wav", stdin="word " * 100)
    assert result.exit_code == 1
    assert "standard input: has a line of more than 100 bytes" in result.stderr
    assert files_in() == []


# Files


def test_several_files_become_one_sound(say, small_bundle: Path):
    Path("a.txt").write_text("It rains.\n\n")
    Path("b.txt").write_text("\ufeffNobody came.\n", encoding="utf-8")
    assert say("-i", "a.txt", "-i", "b.txt", "-i", "-", stdin="\nGood night.").exit_code == 0
    whole = spoken(small_bundle, "It rains.\n\nNobody came.\n\nGood night.")
    assert samples_of("speech.wav") == whole


def test_a_folder_gets_a_sound_for_each_file(say, small_bundle: Path):
    Path("one.txt").write_text("It rains.\nAll day.")
    Path("deep").mkdir()
    Path("deep/one.md").write_text("Nobody came.")
    result = say("-d", "new/out", "-i", "one.txt", "-i", "deep/one.md")
    assert result.exit_code == 0, result.output
    assert files_in("new/out") == ["one-2.wav", "one.wav"]
    assert samples_of("new/out/one.wav") == spoken(small_bundle, "It rains.\nAll day.")
    assert samples_of("new/out/one-2.wav") == spoken(small_bundle, "Nobody came.")


def test_a_folder_gets_a_sound_for_each_line_of_standard_input(say, small_bundle: Path):
    text = "It rains.\n\n  \n今天天气很好。\nIt rains.\r\n"
    assert say("-d", "out", stdin=text).exit_code == 0
    assert files_in("out") == ["it-rains-2.wav", "it-rains.wav", "今天天气很好.wav"]
    assert samples_of("out/it-rains-2.wav") == samples_of("out/it-rains.wav")
    assert samples_of("out/今天天气很好.wav") == spoken(small_bundle, "今天天气很好。")
    # the same again stands beside it, unless it is to replace it
    assert say("-d", "out", stdin="It rains.").exit_code == 0
    assert files_in("out")[:3] == ["it-rains-2.wav", "it-rains-3.wav", "it-rains.wav"]
    Path("out/it-rains.wav").write_bytes(b"older")
    assert say("-d", "out", "--force", stdin="It rains.").exit_code == 0
    assert samples_of("out/it-rains.wav") == samples_of("out/it-rains-2.wav")
    assert len(files_in("out")) == 4


def test_whole_standard_input_is_one_file_of_a_folder(say, small_bundle: Path):
    assert say("-d", "out", "--whole", stdin="It rains.\nAll day.").exit_code == 0
    assert files_in("out") == ["it-rains-all-day.wav"]
    assert samples_of("out/it-rains-all-day.wav") == spoken(small_bundle, "It rains.\nAll day.")


def test_lines_of_a_file_and_a_text_go_into_a_folder_too(say, small_bundle: Path):
    Path("a.txt").write_text("It rains.\nAll day.")
    assert say("-d", "out", "--lines", "--raw", "-i", "a.txt").exit_code == 0
    assert say("-d", "out", "It", "rains.").exit_code == 0
    assert files_in("out") == ["all-day.raw", "it-rains.raw", "it-rains.wav"]
    assert Path("out/all-day.raw").read_bytes() == spoken(small_bundle, "All day.")
    assert samples_of("out/it-rains.wav") == Path("out/it-rains.raw").read_bytes()


def test_each_line_is_a_text_of_its_own(say, small_bundle: Path):
    text = "The rain had stopped before\nthe morning came.\n"
    silence = ("--sentence-silence", "0.25")
    assert say("--lines", "-o", "lines.wav", *silence, stdin=text).exit_code == 0
    first, second = (spoken(small_bundle, line) for line in text.splitlines())
    assert samples_of("lines.wav") == first + bytes(8_000) + second
    assert say("--lines", "-o", "words.wav", *silence, text).exit_code == 0
    assert samples_of("words.wav") == samples_of("lines.wav")


def test_a_file_that_is_not_text_fails_alone(say):
    Path("bad.txt").write_bytes(b"\xff\xfe\0")
    Path("good.txt").write_text("It rains.")
    result = say("-d", "out", "-i", "bad.txt", "-i", "good.txt")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("Error: bad.txt: is not UTF-8 text")
    assert files_in("out") == ["good.wav"]


@pytest.mark.parametrize("path", ["nowhere.txt", "."])
def test_a_file_that_is_not_there_is_found_before_anything_is_loaded(path: str):
    result = CliRunner().invoke(cli, ["say", "-m", "./x", "-i", path])
    assert result.exit_code == 2
    assert f"'{path}'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-d", "out", "-o", "a.wav", "hi"), "--output"),
        (("-i", "a.txt", "hi"), "among the arguments"),
        (("-i", "a.txt", "-"), "among the arguments"),
        (("--json-lines", "hi"), "among the arguments"),
        (("--lines", "--whole"), "against each other"),
        (("-d", "a.txt", "hi"), "is a file"),
    ],
)
def test_what_goes_against_each_other_is_called_wrong(arguments, message: str):
    Path("a.txt").write_text("hi")
    result = CliRunner().invoke(cli, ["say", "-m", "./x", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert files_in() == ["a.txt"]


# Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Good morning. It rains.", "good-morning-it-rains"),
        ("", "speech"),
        ("...", "speech"),
        ("../../etc/passwd", "etc-passwd"),
        ("CON", "speech-con"),
        ("a\0b\nc\ud800", "a-b-c"),
        ("Grüße, ÄÖ!", "grüße-äö"),
        ("नमस्ते दुनिया", "नमस्ते-दुनिया"),
        ("ﬁne №5", "fine-no5"),
    ],
)
def test_a_name_is_made_of_letters_and_digits(text: str, name: str):
    assert slug(text) == name


@pytest.mark.parametrize("text", ["x" * 5_000, "词" * 5_000, "𠀀" * 5_000, "many words " * 900])
def test_a_name_is_never_too_long(text: str):
    assert 1 < len(slug(text).encode()) <= 150
    assert len(slug(text)) <= 50


def test_a_files_own_name_is_kept_where_it_can_be():
    assert stem_of(Path("a/My Story (2).txt")) == "My Story (2)"
    assert stem_of(Path(".hidden")) == "hidden"
    assert stem_of(Path("line\nbreak.txt")) == "line-break"


def test_names_that_differ_in_case_only_are_kept_apart(tmp_path: Path):
    names = FileNames(tmp_path, ".wav", force=False)
    assert [names.made_up(stem).name for stem in ("a", "A", "a-2", "a")] == [
        "a.wav",
        "A-2.wav",
        "a-2-2.wav",
        "a-3.wav",
    ]


@pytest.mark.parametrize(
    "name",
    ["../x.wav", "/x.wav", "a/b.wav", "a\\b.wav", "c:x", "..", ".x", "", "\0", "a\n", "\ud800"],
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="line 7: output"):
        FileNames(tmp_path, ".wav", force=True).asked_for(name, "line 7")


def test_a_link_in_the_folder_is_replaced_and_not_followed(say):
    Path("secret.wav").write_bytes(b"older")
    Path("out").mkdir()
    Path("out/it-rains.wav").symlink_to("../secret.wav")
    assert say("-d", "out", "--force", "It rains.").exit_code == 0
    assert Path("secret.wav").read_bytes() == b"older"
    assert not Path("out/it-rains.wav").is_symlink()
    assert samples_of("out/it-rains.wav")


def test_a_folder_is_never_replaced_and_the_others_are_spoken(say):
    for name in ("it-rains.wav", "taken.wav"):
        Path("out", name).mkdir(parents=True)
    lines = '{"text": "It rains.", "output": "taken"}\n{"text": "It rains."}'
    result = say("-d", "out", "--force", "--json-lines", stdin=lines)
    assert result.exit_code == 1
    assert "line 1: out/taken.wav is a folder" in result.stderr
    assert files_in("out") == ["it-rains-2.wav", "it-rains.wav", "taken.wav"]
    assert samples_of("out/it-rains-2.wav")


# JSON lines


def test_json_lines_speak_with_their_own_voice_file_and_parameters(say, small_bundle: Path):
    lines = [
        {"text": "It rains.", "output": "rain", "voice": "en_male_a"},
        {"text": "It rains.", "seed": 9, "temperature": 0.5, "output": "other.wav"},
        {"text": "It rains."},
    ]
    text = "\ufeff" + "\n\n".join(map(json.dumps, lines))
    result = say("--json-lines", "-d", "out", "--temperature", "0.7", stdin=text)
    assert result.exit_code == 0, result.output
    assert files_in("out") == ["it-rains.wav", "other.wav", "rain.wav"]
    for name, params in (
        ("rain", {"voice": "en_male_a", "temperature": 0.7}),
        ("other", {"seed": 9, "temperature": 0.5}),
        ("it-rains", {"temperature": 0.7}),
    ):
        assert samples_of(f"out/{name}.wav") == spoken(small_bundle, "It rains.", **params)


def test_json_lines_go_into_this_folder_or_into_one_sound(say, small_bundle: Path):
    text = '{"text": "It rains."}\n{"text": "All day."}\n'
    assert say("--json-lines", stdin=text).exit_code == 0
    assert files_in() == ["all-day.wav", "it-rains.wav"]
    assert say("--json-lines", "-o", "one.wav", stdin=text).exit_code == 0
    assert samples_of("one.wav") == samples_of("it-rains.wav") + samples_of("all-day.wav")


def test_a_bad_line_is_told_with_its_number_and_the_others_are_spoken(
    say, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests, "_LINE_BYTES", 1_000)
    Path("there.wav").write_bytes(b"older")
    lines = [
        b'{"text": "It rains.", "output": "ok1"}',
        b"nonsense",
        b'["text"]',
        b'{"txt": "a"}',
        b'{"text": 5}',
        b'{"text": "a", "voice": "nobody"}',
        b'{"text": "a", "seed": -1}',
        b'{"text": "a", "speed": 2}',
        b'{"text": "a", "output": "../a.wav"}',
        b'{"text": "a", "output": "ok1.WAV"}',
        b'{"text": "a", "output": "there"}',
        b'{"text": "a", "output": 7}',
        b'{"text": "\\ud800"}',
        b'{"text": "\xff"}',
        b"[" * 900,
        b'{"text": "' + b"a" * 3_000 + b'"}',
        b'{"text": "It rains.", "output": "ok2"}',
    ]
    result = say("--json-lines", stdin=b"\n".join(lines))
    assert result.exit_code == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert [int(e.partition("line ")[2].partition(":")[0]) for e in errors] == [*range(2, 17)]
    for number, message in {
        2: "not valid JSON",
        3: "not a JSON object",
        4: '"text"',
        6: "en_female_a",
        7: "'seed' is -1",
        8: "'speed'; a line may have: text, output, block_codes",
        9: "plain, visible file name",
        10: "another sound's",
        11: "--force",
        14: "UTF-8",
        16: "longer than 1000 bytes",
    }.items():
        assert message in errors[number - 2]
    assert files_in() == ["ok1.wav", "ok2.wav", "there.wav"]
    assert Path("there.wav").read_bytes() == b"older"


def test_what_is_wrong_for_all_lines_is_told_once(say):
    result = say("--json-lines", "--voice", "nobody", stdin='{"text": "a"}\n{"text": "b"}')
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert files_in() == []


@pytest.mark.parametrize("kind", ["--lines", "--json-lines"])
def test_where_no_line_can_be_spoken_an_older_sound_stays(say, kind: str):
    Path("one.wav").write_bytes(b"older")
    result = say(kind, "-o", "one.wav", stdin=b"\xff\n\xfe\n")
    assert result.exit_code == 1
    assert "one.wav: there is none: no text could be spoken" in result.stderr
    assert Path("one.wav").read_bytes() == b"older"


# Playing


def test_what_is_played_is_what_was_said(say, small_bundle: Path):
    assert say("--play", "--player", f"{KEEPS} {{rate}}", "It rains.").exit_code == 0
    samples = spoken(small_bundle, "It rains.")
    # bare samples, with a little silence so that the last of them is heard
    assert Path("heard").read_bytes() == samples + bytes(3_200)
    assert files_in() == ["heard"]


def test_a_player_of_files_gets_a_wav_and_a_file_is_written_besides(say, small_bundle: Path):
    assert say("--player", KEEPS, "-o", "out.wav", "It rains.").exit_code == 0
    samples = spoken(small_bundle, "It rains.")
    assert Path("heard").read_bytes() == wav_header(16_000, None) + samples + bytes(3_200)
    assert samples_of("out.wav") == samples


def test_one_player_plays_all_files_of_a_folder(say, small_bundle: Path):
    assert say("--player", f"{KEEPS} {{rate}}", "-d", "out", stdin="It rains.\nBye.").exit_code == 0
    one, two = samples_of("out/it-rains.wav"), samples_of("out/bye.wav")
    assert Path("heard").read_bytes() == one + bytes(3_200) + two + bytes(3_200)


def test_without_a_player_a_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(cli, ["say", "-m", "./x", "--play", "hi"])
    assert result.exit_code == 1
    assert "ffplay, paplay, aplay" in result.stderr
    assert "--player" in result.stderr


@pytest.mark.parametrize("command", ["no-such-player -", "unbalanced 'quote", ""])
def test_a_player_that_is_none_is_named_before_anything_is_loaded(command: str):
    result = CliRunner().invoke(cli, ["say", "-m", "./x", "--player", command, "hi"])
    assert result.exit_code == 1
    assert "player" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_player_that_fails_is_an_error_and_the_file_is_not_left(say):
    result = say("--player", "sh -c 'echo no sound card >&2; exit 3'", "-d", "out", "It rains.")
    assert result.exit_code == 1
    assert "no sound card" in result.stderr
    assert files_in("out") in ([], ["it-rains.wav"])  # whole, if the player held out so long


def test_nobody_gets_far_ahead_of_a_player(monkeypatch: pytest.MonkeyPatch):
    naps: list[float] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(sinks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sinks.time, "sleep", sleep)
    from phoonnx_llasa.host import playback

    class FakePlayer:
        def __init__(self, command: list[str]) -> None:
            self.num_bytes = 0

        def write(self, sound: bytes) -> None:
            self.num_bytes += len(sound)

    monkeypatch.setattr(playback, "Player", FakePlayer)
    sound = sinks.PlayedSound(["x", "{rate}"], 16_000)
    for _ in range(80):
        sound.write(bytes(32_000))
    assert sum(naps) == pytest.approx(19)
    assert now[0] == pytest.approx(119)


# Speed


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.3, 2.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float):
    """A tone stays the tone that it was, and the length is right to the sample."""
    np = pytest.importorskip("numpy")
    from phoonnx_llasa.tempo import Tempo

    rate, hertz = 16_000, 220
    times = np.arange(2 * rate + 123) / rate
    tone = (8_000 * np.sin(2 * np.pi * hertz * times)).astype("<i2").tobytes()

    def stretched(block: int) -> bytes:
        tempo = Tempo(speed, rate)
        blocks = [tempo.feed(tone[at : at + block]) for at in range(0, len(tone), block)]
        return b"".join([*blocks, tempo.finish()])

    sound = np.frombuffer(stretched(6_400), "<i2")
    assert len(sound) == round(len(times) / speed)
    assert stretched(6_400) == stretched(502) == stretched(len(tone))
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    peak = np.argmax(spectrum) * rate / len(sound)
    assert peak == pytest.approx(hertz, rel=0.01)
    level = np.sqrt(np.mean(np.square(sound[rate // 10 : -rate // 10], dtype=float)))
    assert level == pytest.approx(8_000 / np.sqrt(2), rel=0.05)


def test_faster_speech_comes_as_early(small_bundle: Path):
    """The filter holds back less than a block."""
    from phoonnx_llasa.tempo import Tempo

    assert len(Tempo(1.5, 16_000).feed(bytes(6_400))) > 0


def test_speed_is_for_files_and_players(say, small_bundle: Path):
    options = ("--speed", "1.25", "--player", f"{KEEPS} {{rate}}", "-o", "out.wav")
    result = say(*options, "It rains.")
    assert result.exit_code == 0, result.output
    usual = len(spoken(small_bundle, "It rains.")) // 2
    samples = samples_of("out.wav")
    assert len(samples) // 2 == round(usual / 1.25)
    assert Path("heard").read_bytes() == samples + bytes(3_200)
    assert f"out.wav: {round(usual / 1.25) / 16_000:.2f} s of sound" in result.stderr


@pytest.mark.parametrize("speed", ["0", "0.4", "2.5", "nan", "-1"])
def test_a_speed_out_of_range_is_found_before_anything_is_loaded(speed: str):
    result = CliRunner().invoke(cli, ["say", "-m", "./x", "--speed", speed, "hi"])
    assert result.exit_code == 1
    assert "'speed'" in result.stderr
    assert "from 0.5 to 2" in result.stderr


def test_without_the_library_a_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "av.filter", None)
    result = CliRunner().invoke(cli, ["say", "-m", "./x", "--speed", "1.5", "hi"])
    assert result.exit_code == 1
    assert "pip install av" in result.stderr


# Options, statistics, progress


def test_every_parameter_of_the_model_is_an_option():
    options = {parameter.name for parameter in say_command.params}
    assert set(PARAMETERS) - options == {"stream"}  # which is --no-stream


def test_the_windows_of_streaming_reach_the_model(say, small_bundle: Path):
    windows = {"first_block_codes": 3, "block_codes": 4, "lookback_codes": 7, "lookahead_codes": 2}
    arguments = [
        part for name, value in windows.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    assert say("-o", "out.wav", *arguments, "It rains.").exit_code == 0
    assert samples_of("out.wav") == spoken(small_bundle, "It rains.", **windows)
    assert samples_of("out.wav") != spoken(small_bundle, "It rains.")


def test_a_wrong_value_is_found_before_anything_is_loaded():
    result = CliRunner().invoke(cli, ["say", "-m", "./x", "--block-codes", "0", "hi"])
    assert result.exit_code == 1
    assert "'block_codes' is 0" in result.stderr


def test_statistics_for_programs_are_a_line_of_json_for_each_sound(say):
    result = say("-q", "--stats-json", "-d", "out", stdin="It rains.\n...\n")
    assert (result.exit_code, result.stdout) == (0, "")
    spoken_line, silent_line = map(json.loads, result.stderr.splitlines())
    seconds = len(samples_of("out/it-rains.wav")) / 32_000
    assert spoken_line["output"] == "out/it-rains.wav"
    assert spoken_line["sound_seconds"] == pytest.approx(seconds)
    assert spoken_line["codes"] == round(seconds * 50)
    assert spoken_line["real_time_factor"] == pytest.approx(spoken_line["work_seconds"] / seconds)
    assert 0 < spoken_line["first_sound_seconds"] <= spoken_line["work_seconds"]
    assert silent_line["sound_seconds"] == 0
    assert silent_line["real_time_factor"] is None


def test_waiting_for_text_is_no_work(monkeypatch: pytest.MonkeyPatch):
    """What the synthesizer waits for is taken off the time it was given."""
    now = [0.0]
    monkeypatch.setattr(speaking.time, "perf_counter", lambda: now[0])

    def slow_writer() -> Iterator[str]:
        for seconds, part in ((5, "It rains."), (7, "Still.")):
            now[0] += seconds
            yield part
        now[0] += 3

    tally = progress.Tally(16_000)
    pauses: list[float] = []

    class Sink:
        def pause(self) -> None:
            pauses.append(now[0])

    heard = []
    for part in speaking._followed(slow_writer(), Sink(), tally):  # type: ignore[arg-type]
        heard.append(part)
        now[0] += 1  # it is spoken
    assert heard == ["It rains.", "Still."]
    assert tally.worked == -15
    # each part is heard whole before the next one is waited for
    assert pauses == [6, 14]


def test_progress_is_for_terminals_only(say, monkeypatch: pytest.MonkeyPatch):
    shown: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    with progress.progress_display(quiet=False) as display:
        display.show("a.wav", progress.Tally(16_000, samples=24_000, worked=0.5))
        shown.append(progress.sys.stderr.getvalue())
    assert "1.5 s of sound, 3.0 times as fast as it is spoken: a.wav" in shown[0]
    for quiet, stream in ((True, Terminal()), (False, io.StringIO())):
        monkeypatch.setattr(progress.sys, "stderr", stream)
        with progress.progress_display(quiet=quiet) as display:
            display.show("a.wav", progress.Tally(16_000, samples=24_000, worked=0.5))
        assert stream.getvalue() == ""


def test_parts_are_checked_when_their_turn_comes(small_bundle: Path):
    voice = voice_of(small_bundle)
    chunks = voice.synthesize_parts(["It rains.", 7])
    assert len(next(chunks).audio_int16_bytes) > 0
    with pytest.raises(ParameterError, match="a string"):
        list(chunks)


@pytest.mark.parametrize("parts", ["It rains.", None])
def test_a_text_is_no_parts_of_one(small_bundle: Path, parts):
    with pytest.raises(ParameterError, match=r"as in \[text\]"):
        voice_of(small_bundle).synthesize_parts(parts)


def test_a_sound_is_kept_though_nobody_listens_to_what_is_said_of_it(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        words = ["say", "-m", str(small_bundle), *SHORT, "-d", ".", "It rains."]
        cli.main(words, standalone_mode=False)
        cli.main(words, standalone_mode=False)
    assert files_in() == ["it-rains-2.wav", "it-rains.wav"]


# From here on in processes of their own, which import phoonnx anew each time.


def start(*arguments: str | Path, **options: object) -> "subprocess.Popen[bytes]":
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **options)  # type: ignore[call-overload]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, files_in()
        time.sleep(0.02)


@pytest.mark.slow
def test_an_interrupt_keeps_the_files_that_are_finished(small_bundle: Path):
    lines = b"It rains.\n" + b"This goes on and on. " * 900 + b"\n"
    process = start(
        *("say", "-m", small_bundle, *SHORT, "-d", "out"),
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(lines)
    process.stdin.flush()
    wait_for(
        lambda: (
            Path("out/it-rains.wav").exists()
            and any(path.stat().st_size > 1_000 for path in Path("out").glob(".*.part"))
        )
    )
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert files_in("out") == ["it-rains.wav"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_player_at_once(small_bundle: Path, number: int, code: int):
    player = "sh -c 'echo $$ > player.pid; exec cat > heard' {rate}"
    process = start("say", "-m", small_bundle, "--player", player, "This goes on and on. " * 900)
    wait_for(lambda: Path("heard").exists() and Path("heard").stat().st_size > 1_000)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == code
    assert b"Traceback" not in stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("player.pid").read_text()), 0)


@pytest.mark.slow
def test_an_interrupt_while_waiting_for_text_ends_it(small_bundle: Path):
    process = start(
        *("say", "-m", small_bundle, *SHORT, "-o", "-", "--raw"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"It rains.\n")
    process.stdin.flush()
    samples = spoken(small_bundle, "It rains.")
    assert process.stdout.read(len(samples)) == samples
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 130
