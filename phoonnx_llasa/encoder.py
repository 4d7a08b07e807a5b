"""A recording -> codes -> a preset, where a bundle has the codec's encoder.

The encoder is an optional file of a bundle: nothing of it is needed to speak. Whose voice is cloned
has to have agreed; the caller asks, and no preset is made without the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from phoonnx_llasa.errors import BundleError, GraphError, ParameterError
from phoonnx_llasa.presets import MAX_REFERENCE_CODES, Preset, make_preset

#: The encoder's name in a bundle's folder.
ENCODER_FILE: Final = "xcodec2_encoder.onnx"
#: Seconds of a clip: shorter ones do not carry a voice, of longer ones only the beginning is used
#: (see MAX_REFERENCE_CODES).
SHORTEST_CLIP: Final = 1.0
#: Peak below which there is nothing on the recording.
_SILENCE_PEAK: Final = 1e-3


class Encoder:
    """The codec's encoder as one ONNX graph; thread safe, holds no state of a call.

    Attributes:
        hop_length: samples per code.
        sample_rate: Hertz that recordings must have.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        *,
        hop_length: int = 320,
        sample_rate: int = 16_000,
        path: Path | str = ENCODER_FILE,
    ) -> None:
        """Take a loaded graph.

        Raises:
            GraphError: the signature is not samples float32 [1, T] -> codes int64 [1, 1, N].
        """
        inputs, outputs = session.get_inputs(), session.get_outputs()
        types = [spec.type for spec in (*inputs, *outputs)]
        if types != ["tensor(float)", "tensor(int64)"] or len(inputs[0].shape) != 2:
            raise GraphError(path, f"is not a codec encoder: its inputs and outputs are {types}")
        self.session = session
        self.hop_length = hop_length
        self.sample_rate = sample_rate
        self._path = path
        self._input, self._output = inputs[0].name, outputs[0].name

    def encode(self, samples: NDArray[np.floating[Any]]) -> tuple[int, ...]:
        """Encode a recording; the last code is filled up with silence.

        Args:
            samples: mono [T] at ``sample_rate``, within -1 to 1.

        Raises:
            ParameterError: it is not mono, too short, silent, or not finite.
            GraphError: the graph fails on it.
        """
        sound = np.asarray(samples, np.float32)
        if sound.ndim != 1:
            raise ParameterError("samples", list(sound.shape), "one channel, [T]")
        if len(sound) < SHORTEST_CLIP * self.sample_rate:
            seconds = len(sound) / self.sample_rate
            raise ParameterError("samples", f"{seconds:.2f} s", f"at least {SHORTEST_CLIP} s")
        if not np.isfinite(sound).all() or np.abs(sound).max() < _SILENCE_PEAK:
            raise ParameterError("samples", "silence or no numbers", "a recording of speech")
        # As in training: one sample of silence, then up to a whole code.
        padding = 1 + -(len(sound) + 1) % self.hop_length
        padded = np.pad(sound, (0, padding))[None]
        try:
            (codes,) = self.session.run([self._output], {self._input: padded})
        except Exception as error:  # onnxruntime raises a dozen unrelated classes
            raise GraphError(self._path, f"fails on {len(sound)} samples: {error}") from error
        return tuple(codes.reshape(-1)[: -(-len(sound) // self.hop_length)].tolist())


def find_encoder(folder: Path) -> Path:
    """The encoder of a bundle.

    Raises:
        BundleError: the bundle has none; says how to get one.
    """
    path = folder / ENCODER_FILE
    if not path.is_file():
        raise BundleError(
            path,
            "is missing, so no preset can be made from a recording",
            hint="make it from the XCodec2 checkpoint with "
            "`python -m scripts.conversion.llasa.export_xcodec2_encoder`, or make a preset "
            "from text",
        )
    return path


def open_encoder(
    path: Path,
    *,
    hop_length: int = 320,
    sample_rate: int = 16_000,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Encoder:
    """Load an encoder.

    Raises:
        GraphError: the file does not load, or is not a codec's encoder.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # onnxruntime raises a dozen unrelated classes
        raise GraphError(path, f"does not load: {error}", hint="make it again") from error
    return Encoder(session, hop_length=hop_length, sample_rate=sample_rate, path=path)


def preset_from_clip(
    encoder: Encoder,
    samples: NDArray[np.floating[Any]],
    *,
    sample_rate: int,
    name: str,
    text: str,
    lang: str,
    num_codes: int,
    consent: bool,
) -> Preset:
    """Make a preset of somebody's recording; it says ``synthetic: false``.

    Args:
        encoder: of the same codec as the bundle's decoder.
        samples: mono [T].
        sample_rate: Hertz of the recording.
        name, lang: of the preset.
        text: what is said, word for word.
        num_codes: entries of the codebook.
        consent: the user's word that the speaker agreed to this use of their voice.

    Raises:
        ParameterError: without consent, or the recording cannot be used.
        PresetError: name or text cannot be used.
    """
    if consent is not True:
        raise ParameterError(
            "consent", consent, "true, once the speaker has agreed to this use of their voice"
        )
    if sample_rate != encoder.sample_rate:
        raise ParameterError(
            "sample_rate",
            sample_rate,
            f"{encoder.sample_rate}; `ffmpeg -i in.wav -ar {encoder.sample_rate} -ac 1 out.wav` "
            "makes such a recording",
        )
    codes = encoder.encode(samples)
    if len(codes) > MAX_REFERENCE_CODES:
        longest = MAX_REFERENCE_CODES * encoder.hop_length / encoder.sample_rate
        seconds = len(samples) / sample_rate
        raise ParameterError("samples", f"{seconds:.1f} s", f"at most {longest:g} s")
    return make_preset(
        name, text=text, lang=lang, codes=codes, num_codes=num_codes, synthetic=False
    )
