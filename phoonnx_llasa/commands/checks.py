"""What `phoonnx-llasa doctor` looks at. Each check gives findings and raises nothing on purpose."""

from __future__ import annotations

import importlib
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from phoonnx_llasa.commands.common import BUILT_IN
from phoonnx_llasa.errors import LlasaError

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle
    from phoonnx_llasa.host.catalogue import Listing

Status = Literal["ok", "note", "warning", "error"]

_PACKAGE: Final = "phoonnx-llasa"
_OVOS_PLUGIN: Final = "ovos-tts-plugin-phoonnx-llasa"
#: Distributions that hold the module onnxruntime; two of them overwrite each other's files.
_RUNTIMES: Final = (
    *("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"),
    *("onnxruntime-rocm", "onnxruntime-silicon", "onnxruntime-training"),
)

#: What Llasa-1B's 32-bit weights make one code read, see docs/performance.md.
_LLASA_1B_BYTES_PER_CODE: Final = 4.43e9
_CODES_PER_SECOND: Final = 50
#: Room for the language model's mapped weights, below which each code is read from the disk.
_LLASA_1B_MEMORY: Final = 5_500_000_000

#: The buffer that is read to measure memory: larger than any cache, small for any machine.
_LARGEST_BUFFER: Final = 512 << 20
_SMALLEST_BUFFER: Final = 64 << 20

_SENTENCE: Final = "The quick brown fox jumps over the lazy dog."
_SEED: Final = 1
#: Codes that the sentence takes: a second and a half to eight seconds.
_USUAL_CODES: Final = range(75, 400)
#: RMS of speech at full range, -36 to -6 dBFS.
_USUAL_LEVEL: Final = (0.016, 0.5)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    name: str
    status: Status
    detail: str
    advice: str = ""
    """What to do about it."""
    data: dict[str, Any] = field(default_factory=dict)
    """Figures for programs: bytes, seconds, hertz."""


Check = Callable[[], Iterator[Finding]]


def run_checks(*, quick: bool) -> Iterator[Finding]:
    """All findings, one after the other. A check that fails is a finding itself.

    Args:
        quick: leave out what takes seconds: measuring memory, and speaking.
    """
    checks: list[Check] = [versions, runtime, machine, folders, registration, players, voices]
    if not quick:
        checks += [speed, speech]
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001  (a broken installation fails in any way)
            yield Finding(
                check.__name__, "check", "error", f"{type(error).__name__}: {error}", _REINSTALL
            )


_REINSTALL: Final = f"install it anew: pip install --force-reinstall {_PACKAGE}"


def versions() -> Iterator[Finding]:
    """Python, and the packages that ours needs, held against what it asks for."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    yield Finding("versions", "python", "ok", platform.python_version())
    try:
        wanted = [Requirement(line) for line in metadata.requires(_PACKAGE) or []]
        yield Finding("versions", _PACKAGE, "ok", metadata.version(_PACKAGE))
    except metadata.PackageNotFoundError:
        yield Finding(
            "versions", _PACKAGE, "warning", "is not installed, only found", "pip install it"
        )
        return
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, found = canonicalize_name(requirement.name), _version_of(requirement.name)
        advice = f"pip install --upgrade '{name}{requirement.specifier}'"
        if found is None:
            yield Finding("versions", name, "error", "is missing", advice)
        elif requirement.specifier.contains(found, prereleases=True):
            yield Finding("versions", name, "ok", found)
        else:
            problem = f"{found}, which does not work; needed: {requirement.specifier}"
            yield Finding("versions", name, "error", problem, advice)


def runtime() -> Iterator[Finding]:
    """onnxruntime: whether it is one, and where it can run."""
    import onnxruntime

    there = [name for name in _RUNTIMES if _is_installed(name)]
    if len(there) > 1:
        yield Finding(
            "runtime",
            "packages",
            "warning",
            f"{' and '.join(there)} overwrite each other's files",
            f"pip uninstall {' '.join(there)}, then install one of them",
        )
    providers = onnxruntime.get_available_providers()
    yield Finding(
        "runtime", "execution providers", "ok", ", ".join(providers), data={"providers": providers}
    )


def machine() -> Iterator[Finding]:
    """Processor and memory."""
    from phoonnx_llasa.host.downloads import human_bytes
    from phoonnx_llasa.machine import memory, num_threads, processor

    threads, cores = num_threads(), os.cpu_count() or 1
    yield Finding(
        "machine",
        "processor",
        "ok",
        f"{processor()}, {threads} of {cores} cores to be used",
        data={"threads": threads, "cores": cores},
    )
    total, free = memory()
    if total:
        detail = f"{human_bytes(total)}, {human_bytes(free)} of it free"
        yield Finding("machine", "memory", "ok", detail, data={"total": total, "free": free})


def folders() -> Iterator[Finding]:
    """Where things are kept, and whether there is room."""
    from phoonnx_llasa.host.downloads import cache_folder, human_bytes
    from phoonnx_llasa.language_model import LoadSettings
    from phoonnx_llasa.user_voices import user_voices_folder

    cache = cache_folder()
    yield _folder("downloads", cache, "set HF_HOME to a folder that can be written to")
    free = shutil.disk_usage(_existing(cache)).free
    yield Finding(
        "folders", "room for downloads", "ok", f"{human_bytes(free)} free", data={"free": free}
    )
    try:
        own = user_voices_folder()
        yield _folder("presets of your own", own, "set XDG_DATA_HOME to one that can be written to")
    except LlasaError as error:
        yield Finding("folders", "presets of your own", "warning", str(error))
    proofs = LoadSettings.from_environment().proofs
    if proofs is None:
        yield Finding(
            "folders", "proofs", "note", "are kept nowhere: you have no home", "set XDG_CACHE_HOME"
        )
    else:
        yield _folder("proofs", proofs, "set XDG_CACHE_HOME to one that can be written to")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        yield Finding("folders", "network", "note", "HF_HUB_OFFLINE is set: nothing is downloaded")


def registration() -> Iterator[Finding]:
    """Whether phoonnx and OVOS find us by themselves."""
    if _hook_is_active():
        yield Finding(
            "registration", "start-up hook", "ok", "phoonnx knows our voices once it is imported"
        )
    else:
        yield Finding(
            "registration",
            "start-up hook",
            "warning",
            "did not run, so phoonnx does not know our voices by itself",
            "unset PHOONNX_LLASA_AUTOLOAD and install the package with pip; or import "
            "phoonnx_llasa in your program",
        )
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.host.catalogue import find_voice

    find_voice(TTSModelManager(), BUILT_IN)
    if not hasattr(TTSModelManager, "load_voice"):
        yield Finding("registration", "load_voice", "error", "phoonnx has not taken it", _REINSTALL)
    yield _entry_point()


def players() -> Iterator[Finding]:
    """Programs that play sound from a pipe."""
    from phoonnx_llasa.host.playback import KNOWN_PLAYERS

    names = [command[0] for command in KNOWN_PLAYERS]
    found = [name for name in names if shutil.which(name)]
    if found:
        detail = ", ".join(found)
        yield Finding("players", "programs", "ok", detail, data={"players": found})
    else:
        yield Finding(
            "players",
            "programs",
            "note",
            f"none of {', '.join(names)}; sound can be written to files only",
            "install ffmpeg, pulseaudio-utils or alsa-utils to hear it at once",
            data={"players": []},
        )


def voices() -> Iterator[Finding]:
    """Every model on this machine."""
    from phoonnx.model_manager import TTSModelManager

    from phoonnx_llasa.host.catalogue import cached_bundle, find_voice, list_voices

    seen: set[str] = set()
    manager = TTSModelManager()
    for listing in list_voices():
        if listing.problem:
            yield _broken(listing)
        if not listing.downloaded:
            continue
        info = find_voice(manager, listing.voice_id)
        if info.model_url not in seen:
            seen.add(info.model_url)
            bundle = cached_bundle(info)
            if bundle is not None:
                yield _health(listing, bundle)
                yield from _own_presets(listing, bundle)


def speed() -> Iterator[Finding]:
    """How fast memory is read, and Llasa-1B with it."""
    from phoonnx_llasa.machine import Bandwidth, memory

    free = memory()[1]
    size = min(_LARGEST_BUFFER, max(_SMALLEST_BUFFER, free // 8)) if free else _SMALLEST_BUFFER
    measured = Bandwidth(size).measure()
    yield Finding(
        "speed",
        "memory bandwidth",
        "ok",
        f"{measured / 1e9:.1f} GB/s over {size >> 20} MB",
        data={"bytes_per_second": measured},
    )
    per_code = _LLASA_1B_BYTES_PER_CODE / measured
    factor = per_code * _CODES_PER_SECOND
    kind = f"{factor:.1f} times as long as the speech" if factor > 1 else "faster than real time"
    advice = "" if factor <= 1 else "write it to a file, or hear it with gaps; docs/performance.md"
    if 0 < free < _LLASA_1B_MEMORY:
        kind += "; slower still while less than 5.5 GB of memory are free"
    yield Finding(
        "speed",
        "Llasa-1B, 32 bits",
        "note" if factor > 1 else "ok",
        f"at best {per_code * 1000:.0f} ms for 20 ms of sound, {kind}",
        advice,
        data={"seconds_per_code": per_code, "real_time_factor": factor},
    )


def speech() -> Iterator[Finding]:
    """A sentence of the built-in voice."""
    import numpy as np
    from phoonnx.config import SynthesisConfig

    from phoonnx_llasa.commands.common import load_voice

    begun = time.perf_counter()
    voice = load_voice(BUILT_IN, quiet=True)
    loading = time.perf_counter() - begun
    voice.warmup()
    begun = time.perf_counter()
    first, codes, truncated, samples = math.nan, 0, False, [np.zeros(0, np.float32)]
    for chunk in voice.synthesize(_SENTENCE, SynthesisConfig(extra_params={"seed": _SEED})):
        first = first if codes else time.perf_counter() - begun
        samples.append(chunk.audio_float_array)
        codes += len(chunk.phoneme_ids)
        truncated |= chunk.truncated
    worked = time.perf_counter() - begun
    sound = np.concatenate(samples)
    seconds = len(sound) / voice.config.sample_rate
    level = float(np.sqrt(np.mean(np.square(sound, dtype=np.float64)))) if len(sound) else 0.0
    problem = speech_problem(codes=codes, truncated=truncated, level=level)
    factor = worked / seconds if seconds else math.inf
    figures = {
        "loading_seconds": loading,
        "first_sound_seconds": first,
        "real_time_factor": factor,
        "sound_seconds": seconds,
        "codes": codes,
        "level_dbfs": 20 * math.log10(max(level, 1e-9)),
    }
    if problem:
        yield Finding("speech", "built-in voice", "error", problem, _REINSTALL, figures)
        return
    slow = factor > 1
    yield Finding(
        "speech",
        "built-in voice",
        "warning" if slow else "ok",
        f"{seconds:.1f} s of speech at {figures['level_dbfs']:.0f} dBFS; first sound after "
        f"{first:.2f} s, real-time factor {factor:.2f}; loaded in {loading:.1f} s",
        "slower than real time: what else is the machine doing?" if slow else "",
        figures,
    )


def speech_problem(*, codes: int, truncated: bool, level: float) -> str:
    """What is wrong with the sentence that was spoken; empty if nothing is.

    Args:
        level: RMS of the samples, 1.0 is full scale.
    """
    if codes not in _USUAL_CODES:
        return f"{codes} codes for a sentence that takes {_USUAL_CODES[0]} to {_USUAL_CODES[-1]}"
    if truncated:
        return "the model did not come to an end by itself"
    if not math.isfinite(level):
        return "the sound is not made of numbers"
    if level < _USUAL_LEVEL[0]:
        return f"the sound is silent or nearly so (RMS {level:.4f})"
    return f"the sound is distorted (RMS {level:.2f})" if level > _USUAL_LEVEL[1] else ""


def _version_of(name: str) -> str | None:
    """The version of an installed package; of another onnxruntime where it stands for that."""
    for candidate in _RUNTIMES if name == _RUNTIMES[0] else (name,):
        try:
            return metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
    return None


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _folder(name: str, folder: Path, advice: str) -> Finding:
    nearest = _existing(folder)
    data = {"folder": str(folder)}
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding("folders", name, "ok", str(folder), data=data)
    return Finding("folders", name, "warning", f"{folder} cannot be written to", advice, data)


def _existing(folder: Path) -> Path:
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)


def _hook_is_active() -> bool:
    """Whether a Python that is started afresh waits for phoonnx to be imported."""
    code = (
        "import sys\n"
        "print(any(type(f).__module__ == 'phoonnx_llasa_autoload' for f in sys.meta_path))"
    )
    try:
        done = subprocess.run(  # noqa: S603  (this very Python)
            [sys.executable, "-P", "-c", code], capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.split()[-1:] == [b"True"]


def _entry_point() -> Finding:
    """OVOS's way to our plugin."""
    found = metadata.entry_points(group="opm.tts", name=_OVOS_PLUGIN)
    if not found:
        return Finding(
            "registration",
            "OVOS plugin",
            "warning",
            f"{_OVOS_PLUGIN} is not found by entry point",
            "install the package with pip instead of naming its folder in PYTHONPATH",
        )
    plugin = next(iter(found)).load()
    home = importlib.import_module(plugin.__module__).__name__
    return Finding("registration", "OVOS plugin", "ok", f"{_OVOS_PLUGIN} is {home}")


def _broken(listing: Listing) -> Finding:
    advice = (
        _REINSTALL if listing.built_in else f"phoonnx-llasa download --force {listing.voice_id}"
    )
    return Finding("voices", listing.voice_id, "error", listing.problem, advice)


def _health(listing: Listing, bundle: Bundle) -> Finding:
    """Whether a model can be loaded, and how; its weights are not read."""
    from phoonnx_llasa.checksums import SUMS_FILE
    from phoonnx_llasa.host.downloads import check_sums, human_bytes
    from phoonnx_llasa.user_voices import bundle_voices

    try:
        num_codes, graph = _load_as(bundle)
        presets = len(bundle_voices(bundle, num_codes=num_codes).now().presets)
        # Nine megabytes are read at once; gigabytes when they are downloaded.
        checked = listing.built_in and check_sums(bundle)
    except (LlasaError, OSError) as error:
        return _broken_bundle(listing, error)
    parts = [human_bytes(bundle.num_bytes), f"{presets} presets", graph]
    parts += [f"as {SUMS_FILE} says"] if checked else []
    return Finding(
        "voices",
        listing.voice_id,
        "ok",
        ", ".join(parts),
        data={"bytes": bundle.num_bytes, "presets": presets, "folder": str(bundle.model.parent)},
    )


def _broken_bundle(listing: Listing, error: Exception) -> Finding:
    from dataclasses import replace

    return _broken(replace(listing, problem=str(error)))


def _load_as(bundle: Bundle) -> tuple[int, str]:
    """Entries of the codebook, and which graph will run.

    Raises:
        BundleError: tokenizer or graph cannot be used.
    """
    from phoonnx_llasa.graph.dataflow import GraphMismatchError
    from phoonnx_llasa.graph.llama import read_llama
    from phoonnx_llasa.graph.proof import read_proof
    from phoonnx_llasa.graph.rewriting import key_of_compact
    from phoonnx_llasa.language_model import LoadSettings
    from phoonnx_llasa.prompt import SpeechTokenizer
    from phoonnx_llasa.synthesis import speech_rows

    tokenizer = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
    settings, context = LoadSettings.from_environment(), bundle.config.context_length
    if not settings.compact:
        return tokenizer.num_codes, "the published graph, as PHOONNX_LLASA_GRAPH says"
    try:
        read_llama(bundle.model, max_positions=context)
    except GraphMismatchError as error:
        return tokenizer.num_codes, f"the published graph, which is slower: {error}"
    if settings.proof == "off":
        return tokenizer.num_codes, "the compact graph, not proven: PHOONNX_LLASA_PROOF is off"
    rows = speech_rows(tokenizer)
    key = key_of_compact(bundle.model, context_length=context, rows=rows, prepack=settings.prepack)
    proof = read_proof(settings.proofs, key) if settings.proofs is not None else None
    if proof is None:
        return tokenizer.num_codes, "the compact graph, to be proven when it is first loaded"
    kind = "proven" if proof.passed else f"refused, so the published one: {proof.reason}"
    return tokenizer.num_codes, f"the compact graph, {kind}"


def _own_presets(listing: Listing, bundle: Bundle) -> Iterator[Finding]:
    """The user's own presets for a model, where there are any."""
    from phoonnx_llasa.presets import read_voices
    from phoonnx_llasa.prompt import SpeechTokenizer
    from phoonnx_llasa.user_voices import user_voices_file

    name = f"your presets for {listing.voice_id}"
    try:
        path = user_voices_file(bundle.codec)
        if not path.exists():
            return
        tokenizer = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes)
        found = read_voices(path, num_codes=tokenizer.num_codes)
    except LlasaError as error:
        advice = "mend the file or move it away"
        yield Finding("voices", name, "warning", str(error), advice)
        return
    if found.broken:
        problem = "; ".join(map(str, found.broken.values()))
        yield Finding("voices", name, "warning", f"{path}: {problem}", "make them anew")
    yield Finding(
        "voices", name, "ok", ", ".join(found.presets) or "none", data={"file": str(path)}
    )
