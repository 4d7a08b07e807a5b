"""Stages that run one after another, each in a process of its own, and are not run twice.

A process of its own gives back all its memory and tells its peak. What a stage was made with (its
command, its own source, size and time of its inputs) and what it made is kept in a journal: a stage
whose record still holds is passed over, so a conversion goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from phoonnx_llasa.errors import BundleError
from phoonnx_llasa.files import atomic_writer, read_json

logger = logging.getLogger(__name__)

ROOT: Final = Path(__file__).parents[3]  # where `scripts` can be imported from


class StageError(Exception):
    """A stage failed; its own output says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A command with what it reads and writes."""

    name: str
    module: str
    """Run with `python -m`."""
    arguments: tuple[str, ...]
    inputs: tuple[Path, ...]
    """Files, or folders with all that is in them."""
    outputs: tuple[Path, ...]

    def key(self) -> str:
        """Stands for everything that the outputs depend on, as far as can be told quickly."""
        spec = find_spec(self.module)
        source = Path(spec.origin).read_bytes() if spec and spec.origin else b""
        parts: list[Any] = [self.module, list(self.arguments)]
        for path in _files(self.inputs):
            status = path.stat()
            parts.append([str(path), status.st_size, status.st_mtime_ns])
        return hashlib.sha256(source + json.dumps(parts).encode()).hexdigest()

    def made(self) -> dict[str, int]:
        """Size of every output that is there, by its path."""
        return {str(path): path.stat().st_size for path in _files(self.outputs)}


@dataclass(frozen=True, slots=True)
class Record:
    """How a stage went."""

    key: str
    seconds: float
    peak_bytes: int | None
    """Largest resident memory, mapped files included; None where the system does not tell."""
    outputs: dict[str, int]


class Journal:
    """The records of a work folder, in `journal.json`."""

    def __init__(self, work: Path) -> None:
        self._path = work / "journal.json"
        self.records: dict[str, Record] = {}
        try:
            stored = read_json(self._path) if self._path.is_file() else {}
            self.records = {name: Record(**record) for name, record in stored.items()}
        except (AttributeError, BundleError, TypeError) as error:
            logger.warning("every stage runs again, since the journal is broken: %s", error)

    def holds(self, stage: Stage) -> bool:
        """Whether a stage was done with the same inputs and its outputs are still there."""
        record = self.records.get(stage.name)
        if record is None or not record.outputs:
            return False
        try:
            return record.key == stage.key() and record.outputs == stage.made()
        except OSError:
            return False

    def keep(self, stage: Stage, record: Record) -> None:
        """Add a record and save them all."""
        self.records[stage.name] = record
        content = {name: asdict(each) for name, each in self.records.items()}
        with atomic_writer(self._path) as stream:
            stream.write(json.dumps(content, indent=1).encode() + b"\n")


def run_stages(stages: Sequence[Stage], work: Path, *, restart: bool = False) -> list[Record]:
    """Run what is not done yet, in order.

    Args:
        stages: each may read what those before it wrote.
        work: holds the journal; made if need be.
        restart: run all of them whatever the journal says.

    Raises:
        StageError: a stage failed; those before it stay done.
    """
    work.mkdir(parents=True, exist_ok=True)
    journal = Journal(work)
    for number, stage in enumerate(stages, 1):
        head = f"[{number}/{len(stages)}] {stage.name}"
        if not restart and journal.holds(stage):
            logger.info("%s: done before", head)
            continue
        for path in stage.inputs:
            if not path.exists():
                raise StageError(f"{stage.name}: {path} does not exist")
        logger.info("%s ...", head)
        key = stage.key()
        started = time.monotonic()
        status, peak = _run(stage)
        seconds = time.monotonic() - started
        if status:
            raise StageError(f"{stage.name} failed (exit status {status}); its output says why")
        made = stage.made()
        record = Record(key, round(seconds, 1), peak, made)
        journal.keep(stage, record)
        logger.info("%s: %s", head, describe(record))
    return [journal.records[stage.name] for stage in stages]


def describe(record: Record) -> str:
    """Time, memory and size in words."""
    peak = "" if record.peak_bytes is None else f", peak memory {record.peak_bytes / 1e9:.1f} GB"
    return f"{record.seconds:.0f} s{peak}, wrote {sum(record.outputs.values()) / 1e6:,.1f} MB"


def _run(stage: Stage) -> tuple[int, int | None]:
    """Exit status and peak memory of a stage's command."""
    command = [sys.executable, "-m", stage.module, *stage.arguments]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        if not hasattr(os, "wait4"):
            return process.wait(), None
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        # Before it becomes another program, a child is a copy of this one: its peak is never below
        # the 0.1 GB that this process has.
        unit = 1 if sys.platform == "darwin" else 1024
        return process.returncode, usage.ru_maxrss * unit
    finally:
        if process.returncode is None:
            process.terminate()
            process.wait()


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.is_file())
        elif path.exists():
            yield path
