"""What became of a sound, told while it is made and when it is done."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from phoonnx_llasa.commands.common import tell


@dataclass(slots=True)
class Tally:
    """How much sound was made, and how fast."""

    sample_rate: int
    show: Callable[[Tally], None] = field(default=lambda _: None, repr=False)
    """Called whenever there is more."""
    samples: int = 0
    codes: int = 0
    truncated_pieces: int = 0
    worked: float = 0.0
    """Seconds spent making the sound; waiting for text or for a slow listener does not count."""
    first_sound: float | None = None
    """Seconds of work before the first block."""

    @property
    def seconds(self) -> float:
        """Length of the sound."""
        return self.samples / self.sample_rate

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of sound; None where there is no sound."""
        return self.worked / self.seconds if self.samples else None

    def add_samples(self, count: int) -> None:
        """Count samples that were handed on."""
        self.samples += count
        self.show(self)

    def report(self, loaded: float) -> str:
        """Lines to read."""
        first = "none" if self.first_sound is None else f"{self.first_sound:.2f} s"
        factor = "none" if self.real_time_factor is None else f"{self.real_time_factor:.2f}"
        lines = (
            f"loading: {loaded:.2f} s",
            f"time to first audio: {first}",
            f"real-time factor: {factor} ({self.worked:.2f} s of work)",
            f"audio: {self.seconds:.2f} s, {self.codes} codes",
            f"truncated pieces: {self.truncated_pieces}",
        )
        return "\n".join(lines)

    def as_dict(self, loaded: float) -> dict[str, Any]:
        """The same for programs; seconds everywhere."""
        return {
            "loading_seconds": loaded,
            "first_sound_seconds": self.first_sound,
            "work_seconds": self.worked,
            "real_time_factor": self.real_time_factor,
            "sound_seconds": self.seconds,
            "codes": self.codes,
            "truncated_pieces": self.truncated_pieces,
        }


class Display:
    """Standard error: lines that stay and, on a terminal, one that tells how far one has come."""

    def __init__(self, bar: Any = None) -> None:
        """Begin.

        Args:
            bar: a tqdm; None where nobody looks.
        """
        self._bar = bar

    def show(self, title: str, tally: Tally) -> None:
        """Tell how far one has come with a sound."""
        if self._bar is not None:
            self._bar.set_description_str(progress_line(title, tally))

    def echo(self, line: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            self._bar.clear()
        tell(line)


@contextlib.contextmanager
def progress_display(*, quiet: bool) -> Iterator[Display]:
    """What is told while sound is made; progress on a terminal only, and not where it is quiet."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield Display()
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with (
        tqdm(bar_format="{desc}", leave=False, file=sys.stderr) as bar,
        logging_redirect_tqdm(),
    ):
        yield Display(bar)


def progress_line(title: str, tally: Tally) -> str:
    """How far one has come with a sound; a narrow terminal cuts the end."""
    factor = tally.real_time_factor
    speed = f", {1 / factor:.1f} times as fast as it is spoken" if factor else ""
    return f"{tally.seconds:.1f} s of sound{speed}: {title}"
