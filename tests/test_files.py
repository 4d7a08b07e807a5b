"""Files that are written whole or not at all, and folders that cannot be reached."""

import stat
from pathlib import Path

import pytest

from phoonnx_llasa.files import atomic_writer, is_file, is_plain_name


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    with atomic_writer(path) as stream:
        stream.write(b"sound")
        assert not path.exists()
    assert path.read_bytes() == b"sound"


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    path.write_bytes(b"before")

    def write_half() -> None:
        with atomic_writer(path) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "voices.json"
    path.write_bytes(b"{}")
    path.chmod(0o600)
    with atomic_writer(path) as stream:
        stream.write(b"[]")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_longest_name_that_a_file_may_have_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with atomic_writer(path) as stream:
        stream.write(b"x")
    assert path.read_bytes() == b"x"


def test_a_path_that_cannot_be_asked_about_is_no_file(tmp_path: Path) -> None:
    assert not is_file(tmp_path / ("n" * 300))
    assert not is_file(tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "/a", "C:a", "a\0", "n" * 256])
def test_names_that_lead_elsewhere_are_not_plain(name: str) -> None:
    assert not is_plain_name(name)
