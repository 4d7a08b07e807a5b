"""Speech made faster or slower at its own pitch, as it comes. FFmpeg's `atempo` does the work."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from phoonnx_llasa.errors import ParameterError, UnsupportedError

#: Beyond these speech is hardly understood.
SLOWEST: Final = 0.5
FASTEST: Final = 2.0

_SAMPLE: Final = np.dtype("<i2")
#: Seconds that are handed over at once, always the same: short frames of changing length make the
#: filter's joints audible, and of a long first one nothing comes back before the next.
_STEP: Final = 0.02


class Tempo:
    """One stretch of sound. Whatever its blocks are, the result is the same."""

    def __init__(self, speed: float, sample_rate: int) -> None:
        """Prepare the filter.

        Args:
            speed: 2 is twice as fast, 0.5 half as fast.
            sample_rate: hertz.

        Raises:
            ParameterError: the speed is out of range.
            UnsupportedError: PyAV is not installed.
        """
        check_speed(speed)
        self._speed = speed
        self._sample_rate = sample_rate
        self._step = round(_STEP * sample_rate)
        self._graph = _graph(speed, sample_rate)
        self._waiting = b""
        self._pushed = 0
        self._taken = 0
        self._given = 0

    def feed(self, samples: bytes) -> bytes:
        """Take the next samples and give what is ready. Signed 16-bit little-endian, both."""
        self._waiting += samples
        self._taken += len(samples) // _SAMPLE.itemsize
        step = self._step * _SAMPLE.itemsize
        ready = []
        while len(self._waiting) >= step:
            self._push(self._waiting[:step])
            self._waiting = self._waiting[step:]
            ready.append(self._pull())
        return self._give(b"".join(ready))

    def finish(self) -> bytes:
        """The rest. In all it is what came in divided by the speed, to the sample."""
        if self._waiting:
            self._push(self._waiting)
        self._graph.push(None)
        rest = self._give(self._pull())
        missing = round(self._taken / self._speed) - self._given
        return rest + self._give(bytes(missing * _SAMPLE.itemsize))

    def _give(self, samples: bytes) -> bytes:
        # The filter works in windows, and so ends up to 25 ms too early or too late.
        room = round(self._taken / self._speed) - self._given
        samples = samples[: room * _SAMPLE.itemsize]
        self._given += len(samples) // _SAMPLE.itemsize
        return samples

    def _push(self, samples: bytes) -> None:
        from av import AudioFrame

        sound = np.frombuffer(samples, _SAMPLE).astype(np.int16)
        frame = AudioFrame.from_ndarray(sound[np.newaxis], format="s16", layout="mono")
        frame.sample_rate = self._sample_rate
        frame.pts = self._pushed
        self._pushed += len(sound)
        self._graph.push(frame)

    def _pull(self) -> bytes:
        from av.error import BlockingIOError as NotYet
        from av.error import EOFError as Ended

        ready: list[bytes] = []
        while True:
            try:
                frame = self._graph.pull()
            except (NotYet, Ended):
                return b"".join(ready)
            ready.append(frame.to_ndarray()[0].astype(_SAMPLE).tobytes())


def check_speed(speed: float) -> None:
    """Whether sound can be made at a speed here, found out before any is made.

    Raises:
        ParameterError: it is out of range.
        UnsupportedError: PyAV is not installed.
    """
    if not (math.isfinite(speed) and SLOWEST <= speed <= FASTEST):
        raise ParameterError("speed", speed, f"a number from {SLOWEST:g} to {FASTEST:g}")
    _library()


def _library() -> Any:
    try:
        import av.filter
    except ImportError as error:
        raise UnsupportedError(
            "a speed other than 1 needs PyAV, this package's extra `speed`: `pip install av`"
        ) from error
    return av


def _graph(speed: float, sample_rate: int) -> Any:
    graph = _library().filter.Graph()
    source = graph.add_abuffer(sample_rate=sample_rate, format="s16", layout="mono")
    graph.link_nodes(source, graph.add("atempo", f"{speed:.6f}"), graph.add("abuffersink"))
    graph.configure()
    return graph
