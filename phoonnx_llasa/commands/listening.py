"""A page to listen to candidates for a preset, with the sounds in it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phoonnx_llasa.candidates import Candidate
from phoonnx_llasa.files import atomic_writer
from phoonnx_llasa.loudness import normalize_peak
from phoonnx_llasa.wav import SoundWriter

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .4rem .6rem; border-top: 1px solid #8884 }}
audio {{ width: 16rem; max-width: 100% }}
code {{ background: #8882; padding: .1rem .3rem; overflow-wrap: anywhere }}
</style>
</head>
<body>
<h1>{title}</h1>
<p lang="{lang}">{text}</p>
<p>To keep one, put its seed in the place of N: <code>{command}</code></p>
<table>
<tr><th>no.</th><th>seed</th><th>sound</th><th>length</th><th>pitch</th><th>remarks</th></tr>
{rows}
</table>
</body>
</html>
"""
_ROW: Final = (
    "<tr><td>{number}</td><td>{seed}</td>"
    '<td><audio controls preload="none" src="data:audio/wav;base64,{sound}"></audio></td>'
    "<td>{seconds:.1f} s</td><td>{pitch:.0f} Hz</td><td>{remarks}</td></tr>"
)


def wav_of(sound: NDArray[np.float32], sample_rate: int) -> bytes:
    """A whole WAV, brought to full range so that candidates are equally loud.

    Args:
        sound: float32 [N].
        sample_rate: hertz.
    """
    stream = io.BytesIO()
    writer = SoundWriter(stream, sample_rate)
    writer.write((normalize_peak(sound) * 32767).astype("<i2").tobytes())
    writer.finish()
    return stream.getvalue()


def write_page(
    path: Path,
    candidates: Sequence[Candidate],
    *,
    name: str,
    text: str,
    lang: str,
    sample_rate: int,
    command: str,
) -> None:
    """Write the page, whole or not at all.

    Args:
        command: what keeps the candidate of seed N.

    Raises:
        OSError: the folder cannot be written to.
    """
    rows = [
        _ROW.format(
            number=number,
            seed=candidate.seed,
            sound=base64.b64encode(wav_of(candidate.sound, sample_rate)).decode(),
            seconds=candidate.measures.seconds,
            pitch=candidate.measures.pitch,
            remarks=html.escape("; ".join(candidate.faults())),
        )
        for number, candidate in enumerate(candidates, 1)
    ]
    page = _PAGE.format(
        title=f"Candidates for {html.escape(repr(name))}",
        lang=html.escape(lang),
        text=html.escape(text),
        command=html.escape(command),
        rows="\n".join(rows),
    )
    with atomic_writer(path) as stream:
        stream.write(page.encode())
