"""Where sound goes: files, standard output, a player program, at another speed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

import click

from phoonnx_llasa.commands.common import STANDARD_STREAM
from phoonnx_llasa.errors import PlaybackError
from phoonnx_llasa.wav import SoundWriter, wav_header

if TYPE_CHECKING:
    from phoonnx_llasa.tempo import Tempo

_SAMPLE_BYTES: Final = 2
#: Seconds of sound that a player may be behind: it is kept in memory until it is played.
_MOST_AHEAD: Final = 60.0


class Sink(Protocol):
    """Takes the samples of one sound, signed 16-bit little-endian, as they come."""

    def write(self, samples: bytes) -> None:
        """Take the next samples."""

    def pause(self) -> None:
        """Let go of what is held back: the next samples may be long in coming."""


class WrittenSound:
    """Sound in an open file or pipe."""

    def __init__(self, writer: SoundWriter) -> None:
        self.write = writer.write

    def pause(self) -> None:
        """Nothing is held back."""


class PlayedSound:
    """Sound in a player program, which plays while more is made."""

    def __init__(self, command: Sequence[str], sample_rate: int) -> None:
        """Start the program.

        Raises:
            PlaybackError: it cannot be started.
        """
        from phoonnx_llasa.host.playback import RATE, TAIL, Player

        filled = [part.replace(RATE, str(sample_rate)) for part in command]
        takes_samples = filled != list(command)
        self._player = Player(filled)
        self._sample_rate = sample_rate
        self._tail = bytes(round(TAIL * sample_rate) * _SAMPLE_BYTES)
        self._played_at = time.monotonic()
        if not takes_samples:
            self._player.write(wav_header(sample_rate, None))

    def write(self, samples: bytes) -> None:
        """Hand samples over; waits only where the player is far behind.

        Raises:
            PlaybackError: the program has ended.
        """
        now = time.monotonic()
        if self._played_at - now > _MOST_AHEAD:
            time.sleep(self._played_at - now - _MOST_AHEAD)
        self._player.write(samples)
        seconds = len(samples) / _SAMPLE_BYTES / self._sample_rate
        self._played_at = max(self._played_at, now) + seconds

    def pause(self) -> None:
        """Push what was said out of the player's last buffer, which it plays when it is full."""
        self._player.write(self._tail)

    def finish(self) -> None:
        """Wait until everything is heard.

        Raises:
            PlaybackError: something was not.
        """
        self._player.finish()

    def stop(self) -> None:
        """End the sound now."""
        self._player.stop()


class SeveralSinks:
    """The same sound in several places."""

    def __init__(self, sinks: Sequence[Sink], count: Callable[[int], None]) -> None:
        """Join sinks.

        Args:
            count: told how many samples went to each.
        """
        self._sinks = sinks
        self._count = count

    def write(self, samples: bytes) -> None:
        """Hand samples to all."""
        for sink in self._sinks:
            sink.write(samples)
        self._count(len(samples) // _SAMPLE_BYTES)

    def pause(self) -> None:
        """Tell all."""
        for sink in self._sinks:
            sink.pause()


class ChangedSpeed:
    """Sound on its way to a sink, made faster or slower."""

    def __init__(self, sink: Sink, speed: float, sample_rate: int) -> None:
        self._sink = sink
        self._speed = speed
        self._sample_rate = sample_rate
        self._tempo: Tempo | None = None

    def write(self, samples: bytes) -> None:
        """Pass on what is ready."""
        if self._tempo is None:
            from phoonnx_llasa.tempo import Tempo

            self._tempo = Tempo(self._speed, self._sample_rate)
        self._sink.write(self._tempo.feed(samples))

    def pause(self) -> None:
        """Pass on the rest; the next samples are a sound of their own."""
        if self._tempo is not None:
            self._sink.write(self._tempo.finish())
            self._tempo = None
        self._sink.pause()


@contextlib.contextmanager
def playing(command: Sequence[str], sample_rate: int) -> Iterator[PlayedSound]:
    """A player for as long as the block runs, which ends when everything is heard.

    Where the block fails, or Ctrl-C comes, the sound ends at once.

    Raises:
        PlaybackError: the program fails.
    """
    sound = PlayedSound(command, sample_rate)
    try:
        yield sound
        sound.finish()
    except BaseException:
        sound.stop()
        raise


@contextlib.contextmanager
def writing(stream: IO[bytes], sample_rate: int, *, raw: bool) -> Iterator[WrittenSound]:
    """A WAV or bare samples in an open stream; the header is right when the block ends well."""
    writer = SoundWriter(stream, sample_rate, raw=raw)
    yield WrittenSound(writer)
    writer.finish()


def find_player_command(wanted: str | None) -> list[str]:
    """The player that was asked for, or one that is installed.

    Raises:
        PlaybackError: there is none.
        ParameterError: what was asked for is no command.
    """
    from phoonnx_llasa.host.playback import KNOWN_PLAYERS, find_player

    command = find_player(wanted)
    if command is None:
        known = ", ".join(known[0] for known in KNOWN_PLAYERS)
        raise PlaybackError(
            "no player", f"none of {known} is installed; --player takes any command, -o a file"
        )
    return command


def check_destination(output: str) -> None:
    """Find a wrong destination before the model is loaded.

    Raises:
        click.UsageError: there is no such folder, or sound would go to a terminal.
    """
    if output != STANDARD_STREAM:
        if not Path(output).parent.is_dir():
            raise click.BadParameter(
                f"there is no folder {str(Path(output).parent)!r}", param_hint="--output"
            )
    elif sys.stdout is None or sys.stdout.isatty():
        raise click.BadParameter(
            "sound cannot go to the terminal; pipe it into a player or a file",
            param_hint="--output",
        )
