"""From model.onnx to a compact model that is known to compute the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phoonnx_llasa.compact_decoder import CompactModel, load_compact
from phoonnx_llasa.graph.compact import compact_graph
from phoonnx_llasa.graph.compare import RowDecoder
from phoonnx_llasa.graph.dataflow import GraphMismatchError
from phoonnx_llasa.graph.external_data import external_extents
from phoonnx_llasa.graph.llama import read_llama
from phoonnx_llasa.graph.proof import ProofMode, proof_key, require_proof

LOG = logging.getLogger(__name__)


def open_compact(
    model: Path,
    *,
    context_length: int,
    rows: tuple[int, int] | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    prepack: bool = False,
    threads: int = 0,
) -> CompactModel:
    """Read a graph, author it anew and load the result, all in memory.

    Args:
        model: the published model.onnx; its sidecar may be a link.
        context_length: most positions of one cache.
        rows: first and last token id that logits are wanted for; None for all.
        providers, prepack, threads: see ``load_compact``.

    Raises:
        GraphMismatchError: the graph is not built like a LLaMA.
        GraphError: it is no graph, or the compact one does not load.
        ParameterError: ``rows`` is no range of the vocabulary.
    """
    compact = compact_graph(read_llama(model, max_positions=context_length), rows=rows)
    for note in compact.notes:
        LOG.info("%s: %s", model, note)
    return load_compact(
        compact.model, compact.data_folder, providers=providers, prepack=prepack, threads=threads
    )


def open_proven(
    model: Path,
    reference: Callable[[], RowDecoder],
    *,
    context_length: int,
    rows: tuple[int, int] | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    prepack: bool = False,
    threads: int = 0,
    proof: ProofMode = "auto",
    proofs: Path | None = None,
) -> CompactModel:
    """``open_compact``, held against the published graph unless that was done before.

    Args:
        reference: opens the published graph; called only if a proof has to be made.
        proof: ``force`` makes the proof again, ``off`` goes without.
        proofs: folder where proofs are kept; None keeps none.
        model, context_length, rows, providers, prepack, threads: see ``open_compact``.

    Raises:
        GraphMismatchError: the graph is not built like a LLaMA, or the compact one gives other
            logits.
        GraphError: as for ``open_compact``.
    """
    compact = open_compact(
        model,
        context_length=context_length,
        rows=rows,
        providers=providers,
        prepack=prepack,
        threads=threads,
    )
    key = key_of_compact(
        model, context_length=context_length, rows=rows, providers=providers, prepack=prepack
    )
    found = require_proof(reference, compact.decoder, key=key, folder=proofs, mode=proof)
    if not found.passed:
        raise GraphMismatchError(
            model, "compact graph", f"its logits are not the published graph's: {found.reason}"
        )
    return compact


def key_of_compact(
    model: Path,
    *,
    context_length: int,
    rows: tuple[int, int] | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    prepack: bool = False,
) -> str:
    """The name under which the proof of a compact graph is kept.

    Raises:
        GraphError: the file is no graph.
        OSError: a file cannot be read.
    """
    return proof_key(
        model,
        [model.parent / name for name in external_extents(model)],
        context_length=context_length,
        rows=rows,
        providers=[str(provider) for provider in providers],
        prepack=prepack,
    )
