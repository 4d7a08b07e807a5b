"""`phoonnx-llasa new-voice` and `remove-voice`: presets of the user's own, made by the command."""

import base64
import re
import shutil
import wave
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_world import error_of, own_folders, run
from click.testing import Result

from phoonnx_llasa import open_bundle
from phoonnx_llasa.candidates import Candidate, speak_candidate
from phoonnx_llasa.clips import read_clip
from phoonnx_llasa.commands import new_voice as command
from phoonnx_llasa.errors import ClipError
from phoonnx_llasa.presets import Preset, Voices
from phoonnx_llasa.synthesis import Synthesizer
from phoonnx_llasa.user_voices import bundle_voices, save_preset

TEXT = "The garden is quiet."
RATE = 16_000


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_folders(tmp_path, monkeypatch) as folder:
        yield folder


def new_voice(name: str, *arguments: object, stdin: str | None = None) -> Result:
    """With the built-in voice, which comes to an end by itself."""
    return run("new-voice", name, *arguments, stdin=stdin)


@pytest.fixture
def own(demo_bundle: Path) -> Callable[[], dict[str, Preset]]:
    """The user's own presets for the built-in voice's codec."""

    def read() -> dict[str, Preset]:
        voices: Voices = bundle_voices(open_bundle(demo_bundle), num_codes=1024).now()
        return {name: voices.presets[name] for name in voices.own}

    return read


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there to be asked."""
    monkeypatch.setattr(command, "_is_terminal", lambda: True)


@pytest.fixture(scope="module")
def seventh(demo_bundle: Path) -> tuple[int, ...]:
    voice = Synthesizer.open(open_bundle(demo_bundle))
    return speak_candidate(voice, TEXT, 7).codes


def test_candidates_are_written_with_a_page_and_the_chosen_one_is_kept(own, seventh):
    result = new_voice("anna", "--text", TEXT, "--seed", 6, "--count", 2, "--choose", 2)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert own() == {"anna": Preset("anna", TEXT, "en", seventh, True, 7)}
    folder = Path("anna-candidates")
    names = {"1-seed-6.wav", "2-seed-7.wav", "index.html"}
    assert {path.name for path in folder.iterdir()} == names
    with wave.open(str(folder / "2-seed-7.wav")) as sound:
        assert sound.getparams()[:4] == (1, 2, RATE, 320 * len(seventh))
        samples = np.frombuffer(sound.readframes(1 << 20), "<i2")
    assert abs(int(np.abs(samples).max()) - 32767) <= 1
    page = (folder / "index.html").read_text(encoding="utf-8")
    sounds = [base64.b64decode(found) for found in re.findall(r"base64,([\w+/=]+)", page)]
    assert sounds == [(folder / name).read_bytes() for name in sorted(names)[:2]]
    assert "://" not in page  # it needs nothing from elsewhere


def test_a_seed_gives_the_same_speaker_later_and_no_folder(own, seventh):
    assert new_voice("anna", "--text", TEXT, "--seed", 7).exit_code == 0
    assert own()["anna"].codes == seventh
    assert not list(Path().iterdir())
    assert run("say", "--voice", "anna", "--seed", 1, "-o", "out.wav", "Hello.").exit_code == 0
    assert Path("out.wav").stat().st_size > 1_000


def test_the_command_on_the_page_keeps_a_candidate(own, demo_bundle: Path):
    import shlex

    text = 'It\'s "quiet" <b>.'
    result = new_voice("a&b", "--text", text, "--count", 2, "--out", "x")
    assert result.exit_code == 0, result.output
    assert "nothing is saved yet" in result.stderr
    assert own() == {}
    page = Path("x/index.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    line = result.stderr.rpartition("to keep one: ")[2].strip()
    done = run(*shlex.split(line.replace("--seed N", "--seed 2"))[1:])
    assert done.exit_code == 0, done.output
    assert (own()["a&b"].seed, own()["a&b"].text) == (2, text)


@pytest.mark.parametrize(("answer", "seed"), [("2\n", 4), ("9\n1\n", 3), ("0\n", None)])
def test_on_a_terminal_one_is_asked(own, terminal, answer: str, seed: int | None):
    result = new_voice("anna", "--text", TEXT, "--seed", 3, "--count", 2, stdin=answer)
    assert result.exit_code == 0, result.output
    assert {name: preset.seed for name, preset in own().items()} == (
        {} if seed is None else {"anna": seed}
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", "is not 'none'"),
        ("default", "is not 'default'"),
        ("", "1 to 100 printable characters"),
        ("a\nb", "1 to 100 printable characters"),
        ("x" * 101, "1 to 100 printable characters"),
        (" anna", "no spaces around it"),
        ("calm", "the model has a preset of this name; --force"),
        ("mine", "you have a preset of this name already; --force"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_spoken(
    own, demo_bundle: Path, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    save_preset(open_bundle(demo_bundle).codec, Preset("mine", "Mine.", "en", (1, 2, 3)))
    monkeypatch.setattr("phoonnx_llasa.candidates.speak_candidate", None)
    assert reason in error_of(new_voice(name, "--text", TEXT))
    assert set(own()) == {"mine"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("none", "--text", TEXT),
        ("default", "--text", TEXT),
        ("anna", "--text", " "),
        ("anna", "--text", TEXT, "--lang", "English?"),
        ("anna", "--text", TEXT, "--lang", ""),
        ("anna", "--text", TEXT, "--seed", (1 << 63) - 1, "--count", 2),
    ],
)
def test_what_is_wrong_without_a_model_is_found_before_it_is_downloaded(
    arguments, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "load_voice", None)
    result = new_voice(*arguments)
    assert result.exit_code in {1, 2}
    assert "Error: " in result.stderr


@pytest.mark.parametrize("name", ["calm", "mine"])
def test_force_takes_a_name_that_is_taken(own, demo_bundle: Path, name: str, seventh):
    save_preset(open_bundle(demo_bundle).codec, Preset("mine", "Mine.", "en", (1, 2, 3)))
    assert new_voice(name, "--text", TEXT, "--seed", 7, "--force").exit_code == 0
    assert own()[name].codes == seventh


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ((), 2, "--text is missing"),
        (("--text", TEXT, "--transcript", "x"), 2, "--transcript does not go with --text"),
        (("--text", TEXT, "--i-have-consent"), 2, "--i-have-consent does not go with --text"),
        (("--text", TEXT, "--count", "2", "--choose", "3"), 2, "there are 2 candidates"),
        (("--text", TEXT, "--count", "0"), 2, "--count"),
        (("--text", TEXT, "--seed", "-1"), 2, "--seed"),
        (("--text", TEXT, "--seed", (1 << 63) - 1, "--count", 2), 2, "too large"),
        (("--text", TEXT, "--lang", "English?"), 1, "a language tag"),
        (("--text", "  "), 1, '"text" must be the transcript'),
        (("--text", "?!", "--seed", "1"), 1, "a sentence to speak"),
        (("--text", "This is long. " * 20, "--seed", "1"), 1, "spoken in pieces"),
        (("--text", TEXT, "-m", "./nowhere"), 1, "nowhere"),
        (("--from-clip", "nowhere.wav"), 2, "nowhere.wav"),
    ],
)
def test_what_cannot_be_done_says_why(own, arguments, code: int, reason: str):
    assert reason in error_of(new_voice("anna", *arguments), code)
    assert own() == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"truncated": True}, "seed 3 did not end by itself"),
        ({"codes": (1,) * 501}, "seed 3 has 501 codes, at most 500 can be used"),
    ],
)
def test_speech_that_is_no_reference_is_no_preset(
    own, monkeypatch: pytest.MonkeyPatch, change: dict, reason: str
):
    def speak(*arguments: object) -> Candidate:
        return replace(speak_candidate(*arguments), **change)

    monkeypatch.setattr("phoonnx_llasa.candidates.speak_candidate", speak)
    result = new_voice("anna", "--text", TEXT, "--seed", "3", "--out", "tried")
    assert reason in error_of(result)
    assert Path("tried/1-seed-3.wav").stat().st_size > 1_000
    assert own() == {}


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path):
    Path("taken").write_text("")
    assert "taken" in error_of(new_voice("anna", "--text", TEXT, "--count", "2", "-o", "taken"), 2)
    assert "taken" in error_of(new_voice("anna", "--text", TEXT, "--count", "2", "-o", "taken/x"))


def test_the_language_is_the_models_or_the_one_that_is_said(own, hub_cache: Path):
    bundle = open_bundle(next(hub_cache.rglob("config.json")).parent)
    assert command._language("llasa/HKUST/zh/1b", bundle) == "zh"
    assert command._language("llasa/HKUST/en/1b", bundle) == "en"
    assert command._language("./folder", bundle) == "en"
    assert new_voice("anna", "--text", TEXT, "--seed", 7, "--lang", "en-GB").exit_code == 0
    assert own()["anna"].lang == "en-GB"


def test_a_voice_is_removed_again(own):
    assert new_voice("anna", "--text", TEXT, "--seed", 7).exit_code == 0
    assert run("remove-voice", "anna", stdin="n\n").exit_code == 1
    assert set(own()) == {"anna"}
    result = run("remove-voice", "anna", stdin="y\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert own() == {}
    assert "none of your own" in error_of(run("remove-voice", "--yes", "anna"))
    assert "none of your own" in error_of(run("remove-voice", "--yes", "calm"))


def write_wav(path: Path, samples: np.ndarray, *, rate: int = RATE, width: int = 2) -> Path:
    """Samples [T] or [T, channels] within -1 to 1."""
    full = 2.0 ** (8 * width - 1)
    numbers = np.clip(np.round(samples * full), -full, full - 1).astype("<i8")
    if width == 1:
        numbers += 128
    content = numbers.reshape(-1, 1).view("u1").reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as sound:
        sound.setparams((1 if samples.ndim == 1 else samples.shape[1], width, rate, 0, "NONE", ""))
        sound.writeframes(content)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_recordings_of_any_width_and_channels_are_read(width: int, channels: int):
    tone = 0.5 * np.sin(np.arange(2_000) / 10)
    parts = np.stack([tone * (1 if n % 2 == 0 else 0.5) for n in range(channels)], axis=1)
    path = write_wav(Path("clip.wav"), parts, rate=44_100, width=width)
    samples, rate = read_clip(path)
    assert rate == 44_100
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, parts.mean(axis=1), atol=1.01 / 2 ** (8 * width - 1))


@pytest.mark.parametrize("content", [b"", b"RIFF", b"ID3" + bytes(100)])
def test_what_is_no_recording_says_how_to_make_one(content: bytes):
    Path("clip.wav").write_bytes(content)
    with pytest.raises(ClipError, match=r"no WAV that can be read.*ffmpeg"):
        read_clip(Path("clip.wav"))


def test_a_recording_that_is_an_hour_long_is_not_read():
    with wave.open("clip.wav", "wb") as sound:
        sound.setparams((1, 1, 100, 0, "NONE", ""))
        sound.writeframes(bytes(100 * 3600))
    with pytest.raises(ClipError, match="longer than ten minutes"):
        read_clip(Path("clip.wav"))


@pytest.fixture
def clip() -> Path:
    return write_wav(Path("clip.wav"), 0.3 * np.sin(np.arange(2 * RATE) / 20))


CLIP = ("--from-clip", "clip.wav", "--transcript", "What I say.")


def test_a_model_without_an_encoder_says_what_is_missing(own, clip: Path):
    line = error_of(new_voice("me", *CLIP, "--i-have-consent"))
    assert "xcodec2_encoder.onnx: is missing" in line
    assert own() == {}


def test_a_clip_goes_with_nothing_that_is_for_texts(clip: Path):
    assert "--from-clip needs --transcript" in error_of(new_voice("me", "--from-clip", clip), 2)
    for option in (("--text", TEXT), ("--seed", 1), ("--count", 2), ("--choose", 1), ("-o", "x")):
        assert "does not go with --from-clip" in error_of(new_voice("me", *CLIP, *option), 2)


@pytest.fixture
def with_encoder(small_bundle: Path, tmp_path: Path) -> Path:
    """The small bundle with an encoder: a code is the loudness of its samples."""
    from onnx import TensorProto, helper, numpy_helper, save

    shape = numpy_helper.from_array(np.array([1, 1, -1, 320]), "shape")
    scale = numpy_helper.from_array(np.array(100, np.float32), "scale")
    axes = numpy_helper.from_array(np.array([3]), "axes")
    nodes = [
        helper.make_node("Reshape", ["samples", "shape"], ["frames"]),
        helper.make_node("ReduceL1", ["frames", "axes"], ["sums"], keepdims=0),
        helper.make_node("Mul", ["sums", "scale"], ["scaled"]),
        helper.make_node("Div", ["scaled", "most"], ["levels"]),
        helper.make_node("Cast", ["levels"], ["codes"], to=TensorProto.INT64),
    ]
    most = numpy_helper.from_array(np.array(320, np.float32), "most")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("samples", TensorProto.FLOAT, [1, "T"])],
        [helper.make_tensor_value_info("codes", TensorProto.INT64, [1, 1, "N"])],
        [shape, scale, axes, most],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    folder = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    save(model, folder / "xcodec2_encoder.onnx")
    return folder


def test_a_recording_becomes_a_preset_once_its_speaker_has_agreed(
    with_encoder: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
):
    bundle = open_bundle(with_encoder)
    arguments = (*CLIP, "-m", with_encoder)
    assert "--i-have-consent" in error_of(new_voice("me", *arguments), 2)
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    assert new_voice("me", *arguments, stdin="n\n").exit_code == 1
    assert bundle_voices(bundle, num_codes=256).now().own == frozenset()
    result = new_voice("me", *arguments, stdin="y\n")
    assert result.exit_code == 0, result.output
    assert new_voice("me2", *arguments, "--i-have-consent", "--lang", "de").exit_code == 0
    voices = bundle_voices(bundle, num_codes=256).now()
    assert voices.own == {"me", "me2"}
    mine = voices.presets["me"]
    assert (mine.synthetic, mine.seed, mine.text, mine.lang) == (False, None, "What I say.", "en")
    assert len(mine.codes) == 100
    assert mine.codes == voices.presets["me2"].codes
    write_wav(Path("clip.wav"), 0.3 * np.sin(np.arange(44_100) / 20), rate=44_100)
    line = error_of(new_voice("me3", *arguments, "--i-have-consent"))
    assert "'sample_rate' is 44100; allowed: 16000" in line
