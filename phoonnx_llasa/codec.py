"""Codes -> waveform, in one go or block by block while the codes still come.

The XCodec2 decoder is not causal, and its GroupNorms and attention look at the whole window: what
stands around a block changes its level and timbre. So a block is decoded together with codes that
were heard before it (at the start of a piece: the preset's own), some that come after it, and the
last code repeated where nothing follows. docs/streaming.md has the measurements behind every number
here; with the defaults a block's level differs from one-go decoding by 0.2 dB on average.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from phoonnx_llasa.errors import GraphError, ParameterError

#: Where sound really begins or ends, its first or last code is repeated this often around it. The
#: decoder pads with zeros, which it never saw inside speech, and its convolutions carry that 11
#: codes far: users of XCodec2 hear a hiss, which 8 repeats remove (Higgs Audio repeats 8 as well).
_EDGE_CODES: Final = 8
#: A window inside the stream has at least this many codes after its block; a shorter look-ahead is
#: filled up with its last code. One code is the crossfade, 1.5 are the reach of the inverse STFT.
_RIGHT_CODES: Final = 4
#: Weights of a file this large stay in it, mapped: XCodec2's 760 MB took 1.6 s and 0.9 GB to load,
#: and 0.15 s and nothing since. Small windows decode a third slower, the usual ones a tenth.
_MAPPED_FROM: Final = 64 << 20


class Codec:
    """The codec's decoder as one ONNX graph; thread safe, holds no state of a call.

    Attributes:
        hop_length: samples per code.
        sample_rate: Hertz.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        *,
        hop_length: int = 320,
        sample_rate: int = 16000,
        path: Path | str = "xcodec2_decoder.onnx",
    ) -> None:
        """Take a loaded graph.

        Args:
            session: the graph.
            hop_length: samples per code.
            sample_rate: Hertz.
            path: where the graph is from, for messages.

        Raises:
            GraphError: the signature is not codes int64 [1, 1, N] -> sound float32 [1, 320 N].
        """
        self.session = session
        self.hop_length = hop_length
        self.sample_rate = sample_rate
        self._path = path
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if len(inputs) != 1 or not outputs:
            names = ", ".join(spec.name for spec in inputs) or "none"
            raise GraphError(
                path, f"is not a codec decoder: its inputs are {names}, expected codes"
            )
        codes, sound = inputs[0], outputs[0]
        for spec, kind, ranks in ((codes, "int64", (3,)), (sound, "float", (2, 3))):
            if spec.type != f"tensor({kind})" or len(spec.shape) not in ranks:
                raise GraphError(
                    path,
                    f"is not a codec decoder: {spec.name!r} is {spec.type} {spec.shape}, "
                    "expected codes tensor(int64) [1, 1, N] -> tensor(float) [1, samples]",
                )
        if isinstance(codes.shape[2], int):
            raise GraphError(
                path, f"takes exactly {codes.shape[2]} codes; their number has to be free"
            )
        self._input, self._output = codes.name, sound.name

    def decode(self, codes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Decode codes as they are: no context, no fades.

        Args:
            codes: [N], each from 0 up to the codebook's size.

        Returns:
            Samples float32 [hop_length * N].

        Raises:
            GraphError: the graph fails on them, or gives another number of samples.
        """
        ids = np.asarray(codes, np.int64).reshape(1, 1, -1)
        if not ids.size:
            return np.zeros(0, np.float32)
        try:
            (sound,) = self.session.run([self._output], {self._input: ids})
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise GraphError(
                self._path, f"fails on {ids.size} codes from {ids.min()} to {ids.max()}: {error}"
            ) from error
        samples: NDArray[np.float32] = sound.reshape(-1)
        if samples.size != ids.size * self.hop_length:
            raise GraphError(
                self._path,
                f"gives {samples.size} samples for {ids.size} codes, "
                f"expected {self.hop_length} per code",
                hint="compare hop_length in config.json",
            )
        return samples


def open_codec(
    path: Path,
    *,
    hop_length: int = 320,
    sample_rate: int = 16000,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Codec:
    """Load a decoder.

    Args:
        path: the ONNX file.
        hop_length: samples per code.
        sample_rate: Hertz.
        providers: onnxruntime execution providers, best first.

    Raises:
        GraphError: the file does not load, or is not a codec's decoder.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # A plan of allocations is kept for every number of codes ever seen, and streaming sees many.
    options.enable_mem_pattern = False
    model: str | bytes = str(path)
    try:
        if path.stat().st_size >= _MAPPED_FROM and list(providers) == ["CPUExecutionProvider"]:
            from phoonnx_llasa.graph.mapped import can_map, map_weights

            if can_map():
                mapped = map_weights(path)
                model = mapped.model
                options.add_session_config_entry(
                    "session.model_external_initializers_file_folder_path", str(mapped.folder)
                )
                options.add_session_config_entry("session.disable_prepacking", "1")
        session = onnxruntime.InferenceSession(model, options, providers=list(providers))
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        raise GraphError(path, f"does not load: {error}", hint="fetch the bundle again") from error
    return Codec(session, hop_length=hop_length, sample_rate=sample_rate, path=path)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How a stream of codes is cut into windows. One code is 20 ms.

    Raises:
        ParameterError: a value is out of range.
    """

    first_block_codes: int = 10
    """The first block, small for early sound. Later ones double up to ``block_codes``."""
    block_codes: int = 50
    """No block is larger, the first neither."""
    lookback_codes: int = 100
    """Codes decoded again before each block, at first those of the preset."""
    lookahead_codes: int = 5
    """Codes waited for after each block. 0 is as good as 1: only the code after a block tells that
    it is not the last, which ends differently."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            lowest = 0 if entry.name.startswith("look") else 1
            # Llasa's context holds 2,048 tokens: nobody has more codes than this to wait for.
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= 1000:
                raise ParameterError(entry.name, value, f"an integer from {lowest} to 1000")


_DEFAULTS: Final = StreamSettings()


@dataclass(frozen=True, slots=True)
class Block:
    """A run of codes and its sound."""

    samples: NDArray[np.float32]
    """[hop_length * len(codes)]."""
    codes: tuple[int, ...]


def decode_whole(
    codec: Codec,
    codes: Sequence[int],
    *,
    context: Sequence[int] = (),
    settings: StreamSettings = _DEFAULTS,
) -> Block:
    """Decode a piece in one go.

    Args:
        codec: the decoder.
        codes: all of the piece.
        context: codes before it, not heard; the last ``lookback_codes`` are used.
        settings: only ``lookback_codes`` counts.

    Raises:
        GraphError: the decoder fails.
    """
    codes = [int(code) for code in codes]
    if not codes:
        return Block(np.zeros(0, np.float32), ())
    past = _with_edge(_last(context, settings.lookback_codes), codes)
    samples = _decode_window(codec, past, codes, [], right_codes=_EDGE_CODES)
    samples = samples[: codec.hop_length * len(codes)].copy()
    _fade_in(samples, codec.hop_length)
    _fade_out(samples, codec.hop_length)
    return Block(samples, tuple(codes))


def decode_stream(
    codec: Codec,
    codes: Iterable[int],
    *,
    context: Sequence[int] = (),
    settings: StreamSettings = _DEFAULTS,
) -> Generator[Block, None, None]:
    """Decode a piece block by block, as the blocks are asked for.

    A block is made as soon as it and its look-ahead have come, or the codes end; what is left at
    the end comes with the last block. Blocks depend on the codes alone, not on when they came.
    What ``codes`` raises passes through; the blocks before stay good. When the generator ends or is
    closed, ``codes`` is closed too, if it can be.

    Args:
        codec: the decoder.
        codes: the piece's codes; no more are taken than the next block needs.
        context: codes before them, not heard.
        settings: the windows.

    Raises:
        GraphError: the decoder fails.
    """
    source = iter(codes)
    try:
        yield from _blocks(codec, source, _last(context, settings.lookback_codes), settings)
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _blocks(
    codec: Codec, source: Iterator[int], past: list[int], settings: StreamSettings
) -> Iterator[Block]:
    hop = codec.hop_length
    lookahead = max(1, settings.lookahead_codes)
    size = min(settings.first_block_codes, settings.block_codes)
    waiting: list[int] = []
    overlap: NDArray[np.float32] | None = None
    ended = False
    while not ended:
        missing = size + lookahead - len(waiting)
        waiting += map(int, islice(source, missing))
        ended = len(waiting) < size + lookahead
        if not waiting:
            return
        if ended:
            size = len(waiting)
        block, waiting = waiting[:size], waiting[size:]
        past = _with_edge(past, block)
        window = _decode_window(
            codec, past, block, waiting, right_codes=_EDGE_CODES if ended else _RIGHT_CODES
        )
        samples = window[: hop * size].copy()
        if overlap is None:
            _fade_in(samples, hop)
        else:
            # The same code, seen from two windows: coherent, so the weights add up to one.
            rise = _ramp(hop)
            samples[:hop] = overlap * (1 - rise) + samples[:hop] * rise
        overlap = window[hop * size : hop * (size + 1)]
        if ended:
            _fade_out(samples, hop)
        yield Block(samples, tuple(block))
        past = _last(past + block, settings.lookback_codes)
        size = min(2 * size, settings.block_codes)


def _decode_window(
    codec: Codec,
    past: list[int],
    block: list[int],
    ahead: list[int],
    *,
    right_codes: int,
) -> NDArray[np.float32]:
    """Sound from the block's first sample on, with what lies right of it, at least one code.

    Fewer codes ahead than ``right_codes`` are filled up with the last one.
    """
    codes = [*past, *block, *ahead]
    codes += codes[-1:] * (right_codes - len(ahead))
    return codec.decode(codes)[codec.hop_length * len(past) :]


def _with_edge(past: list[int], block: list[int]) -> list[int]:
    """What is before a block, its first code repeated where that is less than an edge takes."""
    return (past or block)[:1] * (_EDGE_CODES - len(past)) + past


def _last(codes: Sequence[int], count: int) -> list[int]:
    return [int(code) for code in codes[max(0, len(codes) - count) :]]


def _ramp(length: int) -> NDArray[np.float32]:
    """Half a cosine from 0 to 1, float32 [length]; symmetric, so it and its mirror add up to 1."""
    turns = (np.arange(length) + 0.5) / length
    return (0.5 - 0.5 * np.cos(np.pi * turns)).astype(np.float32)


def _fade_in(samples: NDArray[np.float32], hop: int) -> None:
    """In place, 5 ms: against a pop where the window was already sounding."""
    length = hop // 4
    samples[:length] *= _ramp(length)


def _fade_out(samples: NDArray[np.float32], hop: int) -> None:
    """In place, 10 ms: also where the cap cut speech off in the middle."""
    length = hop // 2
    samples[samples.size - length :] *= _ramp(length)[::-1]
