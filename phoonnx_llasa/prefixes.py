"""Prompt beginnings that were fed before: one prefill for all pieces of a preset."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from phoonnx_llasa.compact_decoder import CompactDecoder, CompactModel

#: Memory for kept beginnings: at 64 kB a token (Llasa-1B) that is 1,000 tokens, ten presets'.
MAX_BYTES: Final = 64 << 20


class PrefixCache:
    """Kept caches of prompt beginnings, the one used longest ago goes first. Thread safe."""

    def __init__(self, model: CompactModel, *, max_bytes: int = MAX_BYTES) -> None:
        """An empty store.

        Args:
            model: whose decoders to give.
            max_bytes: most memory to hold; what is larger is not kept at all.
        """
        self._model = model
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[int, ...], CompactDecoder] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, prompt_ids: Sequence[int], shared: int, *, capacity: int = 0) -> CompactDecoder:
        """A decoder of its own that already holds the beginning of a prompt.

        Args:
            prompt_ids: a whole prompt, of which at least the last token is left to feed.
            shared: how many of its first tokens other prompts begin with as well.
            capacity: positions to make room for at once.

        Returns:
            The decoder; the caller goes on with ``prompt_ids[decoder.length:]``.

        Raises:
            ParameterError: the beginning is longer than the model's context.
        """
        ids = tuple(prompt_ids[: min(shared, len(prompt_ids) - 1)])
        if not ids:
            return CompactDecoder(self._model, capacity=capacity)
        with self._lock:
            kept = self._kept.get(ids)
            if kept is not None:
                self._kept.move_to_end(ids)
        if kept is None:
            # Outside the lock: another voice shall not wait. Two calls may do the same work once.
            decoder = self._model.decoder()
            decoder.feed(ids)
            kept = decoder.fork()  # no larger than need be
            self._keep(ids, kept)
        return kept.fork(capacity=capacity)

    @property
    def num_bytes(self) -> int:
        """Memory that is held."""
        with self._lock:
            return sum(kept.num_bytes for kept in self._kept.values())

    def _keep(self, ids: tuple[int, ...], decoder: CompactDecoder) -> None:
        with self._lock:
            self._kept[ids] = decoder
            self._kept.move_to_end(ids)
            while sum(kept.num_bytes for kept in self._kept.values()) > self._max_bytes:
                self._kept.popitem(last=False)
