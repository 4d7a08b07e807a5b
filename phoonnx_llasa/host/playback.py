"""Sound into a player program while it is being made, for OVOS."""

from __future__ import annotations

import shlex
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final

from ovos_bus_client.message import Message
from ovos_plugin_manager.templates.tts import StreamingTTSCallbacks
from ovos_utils.log import LOG

from phoonnx_llasa.errors import ParameterError, PlaybackError

#: In a player's command: the sample rate in hertz. A command with it gets bare samples (signed
#: 16-bit little-endian, one channel), any other a WAV.
RATE: Final = "{rate}"

#: Looked for in this order, which is ovos-plugin-manager's. They get bare samples because ffplay
#: holds a WAV back until it has read 32 KB, a second of speech. ffplay's first two options stop it
#: from reading ahead to guess the format; a rawer `-fflags nobuffer` plays nothing at all.
#: paplay keeps two seconds unless it is told otherwise, and takes no `-` for standard input.
KNOWN_PLAYERS: Final[Sequence[Sequence[str]]] = (
    (
        *("ffplay", "-probesize", "32", "-analyzeduration", "0", "-autoexit", "-nodisp"),
        *("-loglevel", "error", "-f", "s16le", "-sample_rate", RATE, "-i", "-"),
    ),
    (
        *("paplay", "--raw", "--format=s16le", "--channels=1"),
        *(f"--rate={RATE}", "--latency-msec=200"),
    ),
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", RATE),
)

#: Seconds of silence behind bare samples: ffplay ends with its last buffer unplayed, up to 512
#: samples that its audio library holds.
TAIL: Final = 0.1

_WAV_RATE: Final = struct.Struct("<24xI")
_WAV_HEADER_BYTES: Final = 44
_SAMPLE_BYTES: Final = 2
#: Seconds that a player has to end by itself when it is told to.
_PATIENCE: Final = 1.0
#: Bytes at the end of what a player complained of that go into our message.
_COMPLAINT_BYTES: Final = 500


def find_player(configured: object = None) -> list[str] | None:
    """The command that plays sound from its standard input; None if there is none.

    Args:
        configured: a command line or a list of arguments; None looks for the known players.

    Raises:
        ParameterError: what is configured is no command.
        PlaybackError: the program that is configured is not installed.
    """
    if configured is None:
        for command in KNOWN_PLAYERS:
            if (path := shutil.which(command[0])) is not None:
                return [path, *command[1:]]
        return None
    try:
        command_line = shlex.split(configured) if isinstance(configured, str) else configured
    except ValueError:  # a quotation mark too few
        command_line = None
    if (
        not isinstance(command_line, Sequence)
        or not command_line
        or not all(isinstance(part, str) for part in command_line)
    ):
        raise ParameterError("player", configured, "a command line, or a list of its arguments")
    if shutil.which(command_line[0]) is None:
        raise PlaybackError(command_line[0], "is not installed, or cannot be run")
    return list(command_line)


class Player:
    """One run of a player program. Sound is handed over at once, however slowly it is played."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the program.

        Raises:
            PlaybackError: it cannot be started.
        """
        self._name = command[0]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  (closed by finish)
        try:
            self._process = subprocess.Popen(  # noqa: S603  (the user's own command)
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
            )
        except OSError as error:
            raise PlaybackError(self._name, f"cannot be started: {error}") from error
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._refused = False
        self._stopped = False
        # A pipe holds two seconds of speech; the model goes on while the player is behind.
        self._feeder = threading.Thread(target=self._feed, name="llasa-player", daemon=True)
        self._feeder.start()

    def write(self, sound: bytes) -> None:
        """Hand over sound to be played behind what was handed over before.

        Raises:
            PlaybackError: the program has ended, and nobody hears any more.
        """
        if self._refused or self._process.poll() is not None:
            raise self._failure()
        self._waiting.put(sound)

    def finish(self, tail: bytes = b"") -> None:
        """Wait until everything is played, or the program is stopped.

        Args:
            tail: sound that need not be heard.

        Raises:
            PlaybackError: the program failed, so that something has not been heard.
        """
        self._waiting.put(tail)
        self._waiting.put(None)
        self._feeder.join()
        code = self._process.wait()
        with self._complaints:
            if (code or self._refused) and not self._stopped:
                raise self._failure()

    def stop(self) -> None:
        """End the program, from any thread; what has not been played yet is not played."""
        self._stopped = True
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101  (for the type checker: it was asked for)
        try:
            with pipe:
                while (sound := self._waiting.get()) is not None:
                    pipe.write(sound)
                    pipe.flush()
        except OSError:
            self._refused = True

    def _failure(self) -> PlaybackError:
        if self._process.poll() is None:  # it closed its input and goes on
            self._process.terminate()
        code = self._process.wait()
        size = self._complaints.seek(0, 2)
        self._complaints.seek(max(0, size - _COMPLAINT_BYTES))
        said = self._complaints.read().decode(errors="replace").strip()
        problem = f"ended with code {code} before everything was played"
        return PlaybackError(self._name, f"{problem}: {said}" if said else problem)


class PlayerCallbacks(StreamingTTSCallbacks):  # type: ignore[misc]
    """What OVOS is told about streamed speech, and the player that it goes to."""

    def __init__(
        self, bus: Any, command: Sequence[str], tts_config: Mapping[str, Any] | None = None
    ) -> None:
        """Prepare for streams; nothing is started.

        Args:
            bus: OVOS's message bus.
            command: as `find_player` gives it.
        """
        super().__init__(bus, play_args=list(command), tts_config=tts_config)
        self._player: Player | None = None
        self._tail = b""
        self._stopped = False
        self._lock = threading.Lock()

    def stream_start(self, message: Any = None) -> None:
        """Tell OVOS that speech begins. The player starts with the WAV header, which says how."""
        with self._lock:
            self._stopped = False
        self._tell(message, "ovos.common_play.duck", "recognizer_loop:audio_output_start")

    def stream_chunk(self, chunk: bytes) -> None:
        """Pass on the next part of a WAV: the header first, alone.

        Raises:
            PlaybackError: the player cannot be started, or has ended.
        """
        with self._lock:
            if self._stopped:
                return
            if self._player is not None:
                self._player.write(chunk)
                return
            (rate,) = _WAV_RATE.unpack_from(chunk)
            command = [part.replace(RATE, str(rate)) for part in self.play_args]
            LOG.debug(f"playing with {command}")
            self._player = Player(command)
            wants_wav = command == self.play_args
            self._player.write(chunk if wants_wav else chunk[_WAV_HEADER_BYTES:])
            self._tail = b"" if wants_wav else bytes(round(TAIL * rate) * _SAMPLE_BYTES)

    def stream_stop(self, listen: bool = False, message: Any = None) -> None:
        """Wait until everything is played, then tell OVOS.

        Raises:
            PlaybackError: something was not played.
        """
        try:
            if self._player is not None:
                self._player.finish(self._tail)
        finally:
            self._player = None
            events = ["ovos.common_play.unduck", "recognizer_loop:audio_output_end"]
            if listen and not self._stopped:
                events.append("mycroft.mic.listen")
            self._tell(message, *events)

    def abort(self) -> None:
        """End the sound now, from any thread; `stream_stop` has still to be called."""
        with self._lock:
            self._stopped = True
            player = self._player
        if player is not None:
            player.stop()

    def _tell(self, message: Any, *events: str) -> None:
        message = message or Message("speak")
        for event in events:
            # "pulse_duck": the sound server lowers other sound by itself
            if not (event.startswith("ovos.common_play.") and self.config.get("pulse_duck")):
                self.bus.emit(message.forward(event))
