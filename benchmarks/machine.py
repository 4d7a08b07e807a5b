"""What a machine is and does besides, and what a process holds of its memory."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from phoonnx_llasa.machine import Bandwidth, fields_of, num_threads, processor

__all__ = ["Activity", "Bandwidth", "Memory", "describe", "num_threads"]

#: Instruction sets that the kernels of onnxruntime and llama.cpp ask for.
_FLAGS: Final = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "asimd")
_PACKAGES: Final = ("phoonnx", "onnxruntime", "numpy", "llama-cpp-python", "torch", "transformers")


def describe() -> dict[str, Any]:
    """Processor, memory and versions; Linux tells the most."""
    cpu = fields_of(Path("/proc/cpuinfo"))
    memory = fields_of(Path("/proc/meminfo"))
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "family": [cpu.get("cpu family", ""), cpu.get("model", "")],
        "cores": num_threads(),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_gb": int(memory.get("MemTotal", "0 kB").split()[0]) * 1024 / 1e9,
        "system": f"{platform.system()} {platform.release()}",
        "virtual": "hypervisor" in flags,
        "versions": versions,
    }


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
        rollup = fields_of(Path("/proc/self/smaps_rollup"))
        status = fields_of(Path("/proc/self/status"))
        sizes = (rollup.get("Rss"), rollup.get("Anonymous"), status.get("VmHWM"))
        return cls(*(int((size or "0 kB").split()[0]) * 1024 for size in sizes))
