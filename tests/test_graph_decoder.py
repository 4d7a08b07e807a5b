"""The compact graph at work: cache in place, rollback, forks, growth, batches, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from graph_models import Published

from phoonnx_llasa import compact_decoder
from phoonnx_llasa.compact_decoder import CHUNK, GROWTH, CompactDecoder, CompactModel, load_compact
from phoonnx_llasa.errors import GraphError, ParameterError
from phoonnx_llasa.graph.compact import CompactGraph, compact_graph
from phoonnx_llasa.graph.llama import read_llama
from phoonnx_llasa.graph.rewriting import open_compact
from phoonnx_llasa.prefixes import PrefixCache

VOCAB = 792
CONTEXT = 1200
ROWS = (535, 791)


@pytest.fixture(scope="module")
def path(small_graphs: Path) -> Path:
    return small_graphs / "deduped" / "model.onnx"


@pytest.fixture(scope="module")
def graph(path: Path) -> CompactGraph:
    return compact_graph(read_llama(path, max_positions=CONTEXT), rows=ROWS)


@pytest.fixture(scope="module")
def model(graph: CompactGraph) -> CompactModel:
    return load_compact(graph.model, graph.data_folder, threads=1)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def logits_along(decoder: CompactDecoder, ids: Sequence[int]) -> np.ndarray:
    return np.array([decoder.feed([token]).copy() for token in ids])


def test_the_geometry_is_off_the_graph(model: CompactModel) -> None:
    assert (model.num_layers, model.num_kv_heads, model.head_dim) == (2, 2, 16)
    assert (model.row_offset, model.num_rows) == (ROWS[0], ROWS[1] - ROWS[0] + 1)
    assert model.context_length == CONTEXT
    assert model.decoder().length == 0


def test_a_prompt_in_chunks_is_the_same_prompt(model: CompactModel) -> None:
    ids = tokens(90)
    whole = model.decoder().feed(ids).copy()
    chunked = model.decoder()
    for first, stop in ((0, 40), (40, 43), (43, 90)):
        row = chunked.feed(ids[first:stop])
    assert chunked.length == 90
    np.testing.assert_array_equal(row, whole)


def test_token_by_token_is_the_same_prompt_up_to_rounding(model: CompactModel) -> None:
    ids = tokens(60)
    whole = model.decoder().feed(ids).copy()
    np.testing.assert_allclose(logits_along(model.decoder(), ids)[-1], whole, rtol=0, atol=2e-5)


def test_prompts_longer_than_a_run_and_a_buffer(model: CompactModel, path: Path) -> None:
    ids = tokens(CHUNK + GROWTH + 130)
    row = model.decoder().feed(ids)
    expected = Published(path).feed(ids)[ROWS[0] : ROWS[1] + 1]
    np.testing.assert_allclose(row, expected, rtol=0, atol=2e-5)


def test_what_is_rolled_back_leaves_no_trace(model: CompactModel) -> None:
    prompt, wrong, right = tokens(50), tokens(30, 1), tokens(30, 2)
    expected_decoder, decoder = model.decoder(), model.decoder()
    expected_decoder.feed(prompt)
    expected = logits_along(expected_decoder, right)
    decoder.feed(prompt)
    logits_along(decoder, wrong)
    decoder.truncate(50)
    assert decoder.length == 50
    np.testing.assert_array_equal(logits_along(decoder, right), expected)


def test_a_fork_goes_its_own_way(model: CompactModel) -> None:
    prompt, one, other = tokens(70), tokens(20, 1), tokens(20, 2)
    trunk = model.decoder()
    trunk.feed(prompt)
    branch = trunk.fork()
    expected = []
    for ids in (one, other):
        fresh = model.decoder()
        fresh.feed(prompt)
        expected.append(logits_along(fresh, ids))
    found = [], []
    for left, right in zip(one, other, strict=True):
        found[0].append(trunk.feed([left]).copy())
        found[1].append(branch.feed([right]).copy())
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_a_fork_of_a_part_is_that_part(model: CompactModel) -> None:
    ids = tokens(70)
    trunk = model.decoder()
    trunk.feed(ids)
    branch, fresh = trunk.fork(41), model.decoder()
    fresh.feed(ids[:41])
    assert (branch.length, trunk.length) == (41, 70)
    assert branch.num_bytes == 2 * 2 * 41 * 2 * 16 * 4  # layers, sides, positions, heads, numbers
    np.testing.assert_array_equal(branch.feed([5]), fresh.feed([5]))
    assert trunk.fork(0).length == 0
    with pytest.raises(ParameterError, match="0 to 70"):
        trunk.fork(71)


def test_growing_changes_nothing(model: CompactModel) -> None:
    prompt, ids = tokens(GROWTH - 5), tokens(12, 1)
    grows, roomy = model.decoder(), CompactDecoder(model, capacity=CONTEXT)
    for decoder in (grows, roomy):
        decoder.feed(prompt)
    before = grows.num_bytes
    found, expected = logits_along(grows, ids), logits_along(roomy, ids)
    assert grows.num_bytes == 2 * before
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_the_context_is_the_end(model: CompactModel) -> None:
    decoder = model.decoder()
    decoder.feed(tokens(CONTEXT - 1))
    decoder.feed([1])
    assert decoder.length == CONTEXT
    assert decoder.num_bytes == 2 * 2 * CONTEXT * 2 * 16 * 4
    with pytest.raises(ParameterError, match="1 to 0 more tokens"):
        decoder.feed([1])
    decoder.truncate(10)
    with pytest.raises(ParameterError, match=f"1 to {CONTEXT - 10} more tokens"):
        decoder.feed(tokens(CONTEXT))
    with pytest.raises(ParameterError, match="more tokens"):
        decoder.feed([])
    with pytest.raises(ParameterError, match="0 to 10"):
        decoder.truncate(11)


def test_logits_come_in_one_buffer_that_nobody_writes_to(model: CompactModel) -> None:
    decoder = model.decoder()
    rows = [decoder.feed(ids) for ids in (tokens(9), [1], [2], tokens(3, 5))]
    assert rows[0].dtype == np.float32
    assert len({row.ctypes.data for row in rows}) == 1
    with pytest.raises(ValueError, match="read-only"):
        rows[0][0] = 1


def test_prepacking_is_a_matter_of_speed(graph: CompactGraph, model: CompactModel) -> None:
    ids = tokens(40)
    packed = load_compact(graph.model, graph.data_folder, prepack=True, threads=1)
    for count in (40, 1):
        found, expected = packed.decoder().feed(ids[:count]), model.decoder().feed(ids[:count])
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_threads_do_not_meet(model: CompactModel) -> None:
    def speak(seed: int) -> np.ndarray:
        decoder = model.decoder()
        decoder.feed(tokens(30, seed))
        return logits_along(decoder, tokens(30, seed + 100))

    expected = [speak(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(speak, range(4)))
    np.testing.assert_array_equal(found, expected)


def test_a_ragged_batch_is_its_rows(model: CompactModel) -> None:
    prompts, following = [tokens(11, 1), tokens(30, 2), tokens(1, 3)], tokens(3, 4)
    batch, longest, capacity = len(prompts), max(map(len, prompts)), 40
    ids = np.zeros((batch, longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts])
    past = {
        f"past.{i}.{part}": np.zeros((batch, 2, capacity, 16), np.float32)
        for i in range(2)
        for part in ("key", "value")
    }
    names = ["logits", *(name.replace("past", "present") for name in past)]

    def run(ids: np.ndarray, lengths: np.ndarray, last: np.ndarray) -> np.ndarray:
        scalars = {
            "input_ids": ids,
            "seqlens_k": (lengths - 1).astype(np.int32),
            "total_sequence_length": np.array(lengths.max(), np.int32),
            "last_position": last[:, None],
        }
        logits, *present = model.session.run(names, scalars | past)
        past.update(zip(past, present, strict=True))
        return logits

    prefill = run(ids, lengths, lengths - 1)
    step = run(np.array(following)[:, None], lengths + 1, np.zeros(batch, np.int64))
    for row, prompt in enumerate(prompts):
        decoder = model.decoder()
        np.testing.assert_allclose(prefill[row], decoder.feed(prompt), rtol=0, atol=2e-5)
        np.testing.assert_allclose(step[row], decoder.feed([following[row]]), rtol=0, atol=2e-5)


def test_a_shared_beginning_is_fed_once(model: CompactModel) -> None:
    shared = tokens(60)
    cache = PrefixCache(model)
    for seed in (1, 2):
        prompt = [*shared, *tokens(20, seed)]
        decoder = cache.start(prompt, len(shared), capacity=200)
        assert decoder.length == 60
        fresh = model.decoder()
        fresh.feed(prompt[:60])
        np.testing.assert_array_equal(decoder.feed(prompt[60:]), fresh.feed(prompt[60:]))
    assert cache.num_bytes == 2 * 2 * 60 * 2 * 16 * 4
    assert cache.start(shared, len(shared)).length == 59  # one is left for the logits
    assert cache.start([7], 1).length == 0


def test_shared_beginnings_take_bounded_memory(model: CompactModel) -> None:
    each = 2 * 2 * 50 * 2 * 16 * 4
    cache = PrefixCache(model, max_bytes=3 * each)
    prompts = [[*tokens(50, seed), 1] for seed in range(5)]
    with ThreadPoolExecutor(4) as pool:
        decoders = list(pool.map(lambda prompt: cache.start(prompt, 50), prompts * 3))
    assert cache.num_bytes <= 3 * each
    for prompt, decoder in zip(prompts * 3, decoders, strict=True):
        fresh = model.decoder()
        fresh.feed(prompt[:50])
        np.testing.assert_array_equal(decoder.feed([1]), fresh.feed([1]))


def test_a_session_over_another_graph_is_refused(path: Path) -> None:
    with pytest.raises(GraphError, match="no compact graph"):
        CompactModel(Published(path).session)


def test_bytes_that_are_no_graph_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="does not load"):
        load_compact(b"nothing", tmp_path)


def test_opening_does_it_all(path: Path, model: CompactModel) -> None:
    opened = open_compact(path, context_length=CONTEXT, rows=ROWS, threads=1)
    ids = tokens(20)
    np.testing.assert_array_equal(opened.decoder().feed(ids), model.decoder().feed(ids))


MANY_STEPS = """
import resource, sys
from pathlib import Path
from phoonnx_llasa.graph.rewriting import open_compact

model = open_compact(Path(sys.argv[1]), context_length=600, threads=1)
decoder = model.decoder()
decoder.feed(list(range(20)))
for step in range(7000):
    if step == 2000:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if decoder.length == 600:
        decoder.truncate(20)
    decoder.feed([step % 700])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_flat_over_5000_steps(path: Path) -> None:
    """In a process of its own, whose peak nothing else has raised; kB on Linux."""
    root = Path(compact_decoder.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", MANY_STEPS, str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) <= 256
