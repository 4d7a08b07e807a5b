"""The machine: its processor, and how fast its memory is read, which decides how fast Llasa is."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def processor() -> str:
    """The processor's name, as far as the system tells."""
    cpu = fields_of(Path("/proc/cpuinfo"))
    return cpu.get("model name") or platform.processor() or platform.machine()


def num_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> tuple[int, int]:
    """Bytes of memory: all of it, and what can be had now; zeros where nobody says."""
    told = fields_of(Path("/proc/meminfo"))
    total, free = (told.get(name, "0 kB").split()[0] for name in ("MemTotal", "MemAvailable"))
    return int(total) * 1024, int(free) * 1024


class Bandwidth:
    """Reads a buffer from end to end, a part in each thread: what memory gives at best.

    All its 64-bit words are or-ed together: next to nothing to compute for what is loaded.
    """

    def __init__(self, num_bytes: int) -> None:
        """Make the buffer; it should be many times larger than the processor's cache."""
        buffer = np.ones(num_bytes // 8, np.int64)
        self.num_bytes = buffer.nbytes
        self.threads = num_threads()
        self._parts = np.array_split(buffer, self.threads)
        self._pool = ThreadPoolExecutor(self.threads)

    def measure(self) -> float:
        """Bytes per second, the better of two times through the buffer."""
        return max(self._once(), self._once())

    def _once(self) -> float:
        started = time.perf_counter()
        for _ in self._pool.map(_read, self._parts):
            pass
        return self.num_bytes / (time.perf_counter() - started)


def _read(part: NDArray[np.int64]) -> None:
    np.bitwise_or.reduce(part)


def fields_of(path: Path) -> dict[str, str]:
    """The first of each of the lines ``name: value`` of a file; empty if there is none."""
    found: dict[str, str] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found
