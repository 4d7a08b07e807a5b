"""The WAV writer against Python's own reader."""

import io
import os
import struct
import wave
from pathlib import Path

import pytest

from phoonnx_llasa.wav import SoundWriter, wav_header

SAMPLES = struct.pack("<6h", 0, 100, -100, 32767, -32768, 5)


def read(content: bytes) -> tuple[int, int, int, bytes]:
    with wave.open(io.BytesIO(content)) as sound:
        frames = sound.readframes(len(content))
        return sound.getframerate(), sound.getnchannels(), sound.getsampwidth(), frames


class Pipe(io.BytesIO):
    """A stream that cannot be gone back in, and that counts what has reached the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = 0

    def flush(self) -> None:
        self.flushed = len(self.getvalue())

    def seekable(self) -> bool:
        return False


@pytest.mark.parametrize("sample_rate", [16_000, 48_000])
@pytest.mark.parametrize("samples", [b"", SAMPLES])
def test_a_header_with_a_length_makes_an_ordinary_wav(samples: bytes, sample_rate: int):
    content = wav_header(sample_rate, len(samples)) + samples
    assert read(content) == (sample_rate, 1, 2, samples)
    assert struct.unpack_from("<I", content, 4) == (len(content) - 8,)


@pytest.mark.parametrize("num_bytes", [None, 1 << 33])
def test_a_length_that_is_unknown_or_cannot_be_said_is_the_largest_number(num_bytes: int | None):
    header = wav_header(16_000, num_bytes)
    assert len(header) == 44
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"


def test_a_file_has_its_true_length_in_the_end(tmp_path: Path):
    path = tmp_path / "out.wav"
    with path.open("wb") as stream:
        writer = SoundWriter(stream, 16_000)
        writer.write(SAMPLES[:4])
        writer.write(SAMPLES[4:])
        writer.finish()
        stream.write(b"after")
    assert path.read_bytes() == wav_header(16_000, len(SAMPLES)) + SAMPLES + b"after"


def test_no_sound_at_all_is_a_valid_empty_wav(tmp_path: Path):
    path = tmp_path / "out.wav"
    with path.open("wb") as stream:
        SoundWriter(stream, 16_000).finish()
    assert read(path.read_bytes()) == (16_000, 1, 2, b"")


def test_a_pipe_gets_every_block_at_once_behind_a_header_of_unknown_length():
    pipe = Pipe()
    writer = SoundWriter(pipe, 16_000)
    assert pipe.flushed == 44
    writer.write(SAMPLES)
    assert pipe.flushed == 44 + len(SAMPLES)
    writer.finish()
    assert pipe.getvalue() == wav_header(16_000, None) + SAMPLES
    assert read(pipe.getvalue()) == (16_000, 1, 2, SAMPLES)


def test_a_sound_behind_something_else_in_a_file_leaves_that_alone(tmp_path: Path):
    path = tmp_path / "out.bin"
    with path.open("wb") as stream:
        stream.write(b"before")
        writer = SoundWriter(stream, 16_000)
        writer.write(SAMPLES)
        writer.finish()
    assert path.read_bytes() == b"before" + wav_header(16_000, len(SAMPLES)) + SAMPLES


def test_a_file_that_is_appended_to_is_treated_as_a_pipe(tmp_path: Path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"before")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
        writer = SoundWriter(stream, 16_000)
        writer.write(SAMPLES)
        writer.finish()
    assert path.read_bytes() == b"before" + wav_header(16_000, None) + SAMPLES


def test_raw_sound_is_the_samples_and_nothing_else():
    stream = io.BytesIO()
    writer = SoundWriter(stream, 16_000, raw=True)
    writer.write(SAMPLES)
    writer.finish()
    assert stream.getvalue() == SAMPLES
