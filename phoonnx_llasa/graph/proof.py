"""Hold a rewritten graph against the published one before it is used; once, the result is kept."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import onnxruntime

from phoonnx_llasa._version import __version__
from phoonnx_llasa.errors import BundleError
from phoonnx_llasa.files import atomic_writer, read_json
from phoonnx_llasa.graph.compare import Limits, RowDecoder, compare_along, violations

LOG = logging.getLogger(__name__)

ProofMode = Literal["auto", "force", "off"]
"""Use a kept proof or make one; always make one; believe the graph without one."""

#: Logits may differ by what float32 loses when sums are taken in another order: up to 2e-5 of
#: the largest logit was seen at true size, a wrong angle or scale gives more than 1e-2.
LIMITS: Final = Limits(relative=2e-4)
#: Tokens of the trial's prompt and of the path after it. The prompt goes through the code for
#: many rows, the path through that for one; both reach into the cache.
PROMPT_TOKENS: Final = 32
PATH_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a rewritten graph computes what the published one does."""

    passed: bool
    reason: str
    """What differed, in words; empty if it passed."""
    figures: Mapping[str, float]
    """See ``Comparison.summary``; empty if nothing was run."""


def prove(
    reference: RowDecoder,
    candidate: RowDecoder,
    *,
    prompt_ids: Sequence[int] = (),
    path: Sequence[int] = (),
    limits: Limits = LIMITS,
) -> Proof:
    """Run both over a short prompt and a path and compare all logits they have in common.

    Args:
        reference: the published graph, an empty cache.
        candidate: the rewritten one, an empty cache.
        prompt_ids: what to feed; random tokens out of the candidate's rows if there are none.
        path: the tokens after it; likewise.
        limits: what counts as the same.
    """
    if not prompt_ids or not path:
        prompt_ids, path = trial_tokens(candidate)
    comparison = compare_along(reference, candidate, prompt_ids, path)
    wrong = violations(comparison, limits)
    return Proof(not wrong, "; ".join(wrong), comparison.summary())


def trial_tokens(decoder: RowDecoder) -> tuple[list[int], list[int]]:
    """Random tokens for a trial, always the same: a prompt and a path."""
    count = len(decoder.feed([decoder.row_offset]))
    ids = np.random.default_rng(0).integers(0, count, PROMPT_TOKENS + PATH_TOKENS)
    tokens = (ids + decoder.row_offset).tolist()
    return tokens[:PROMPT_TOKENS], tokens[PROMPT_TOKENS:]


def require_proof(
    reference: Callable[[], RowDecoder],
    candidate: Callable[[], RowDecoder],
    *,
    key: str,
    folder: Path | None,
    mode: ProofMode = "auto",
) -> Proof:
    """Give the kept proof of a rewritten graph, or make it and keep it.

    Args:
        reference: opens the published graph; called only if a proof has to be made.
        candidate: opens the rewritten one; likewise.
        key: what the proof is valid for, see ``proof_key``.
        folder: where proofs are kept, made if need be; None keeps none.
        mode: ``off`` gives a passed proof without figures.
    """
    if mode == "off":
        return Proof(True, "", {})
    if mode == "auto" and folder is not None and (kept := read_proof(folder, key)) is not None:
        return kept
    proof = prove(reference(), candidate())
    if folder is not None:
        try:
            write_proof(folder, key, proof)
        except OSError as error:  # a read-only home costs time, not the voice
            LOG.warning("cannot keep the proof of a rewritten graph in %s: %s", folder, error)
    return proof


def proof_key(model: Path, sidecars: Sequence[Path], **settings: object) -> str:
    """A name for everything that a proof depends on.

    Args:
        model: model.onnx; hashed as a whole.
        sidecars: files of its weights. In the hub's cache their real names are hashes of their
            content; elsewhere size and time of change stand for it.
        settings: what the rewritten graph was made with.

    Raises:
        OSError: a file cannot be read.
    """
    with model.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    parts: list[object] = [__version__, onnxruntime.__version__, platform.machine()]
    for path in sorted(sidecars):
        real = path.resolve()
        status = real.stat()
        parts += [path.name, status.st_size]
        parts.append(real.name if path.is_symlink() else status.st_mtime_ns)
    parts += sorted(settings.items())
    digest.update(repr(parts).encode())
    return digest.hexdigest()


def read_proof(folder: Path, key: str) -> Proof | None:
    """The kept proof, if there is a readable one."""
    path = _record(folder, key)
    try:
        record = read_json(path)
        return Proof(bool(record["passed"]), str(record["reason"]), dict(record["figures"]))
    except (BundleError, KeyError, TypeError, ValueError) as error:
        LOG.info("no proof that can be used: %s", error)
        return None


def write_proof(folder: Path, key: str, proof: Proof) -> None:
    """Keep a proof.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_writer(_record(folder, key)) as stream:
        stream.write(json.dumps(asdict(proof), indent=1).encode())


def _record(folder: Path, key: str) -> Path:
    return folder / f"proof-{key[:32]}.json"
