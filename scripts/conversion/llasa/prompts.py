"""What the gates feed to a language model: sentences of two languages, as far as it reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from phoonnx_llasa.bundle import LLASA_PROMPT
from phoonnx_llasa.errors import TokenizerError, UnreadableTextError
from phoonnx_llasa.graph.compare import RowDecoder, Rows
from phoonnx_llasa.prompt import PromptBuilder, SpeechTokenizer

SENTENCES: Final = {
    "en": "Dealing with family secrets is never easy, yet sometimes it is the only way.",
    "zh": "突然，身边一阵笑声。我看着他们，意气风发地挺直了胸膛。",
}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as token ids."""

    ids: dict[str, list[int]]
    """By language."""
    speech: tuple[int, int] | None
    """First and last token that may be sampled; None where the model knows no speech."""

    def sampled(self, decoder: RowDecoder) -> RowDecoder:
        """The decoder, with the logits alone that may be sampled."""
        return decoder if self.speech is None else Rows(decoder, *self.speech)


def read_prompts(tokenizer: Path, *, template: str = LLASA_PROMPT) -> Prompts:
    """The sentences as a speech model gets them, or as plain text for any other LLaMA.

    A voice of one language has a tokenizer that refuses the other one, which is left out then.

    Raises:
        TokenizerError: the file is no tokenizer, or the template names a token that it lacks.
        UnreadableTextError: it reads neither of the languages.
    """
    try:
        speech = SpeechTokenizer(tokenizer)
    except TokenizerError as error:
        if "<|s_0|>" not in str(error):
            raise
        plain = Tokenizer.from_file(str(tokenizer))
        return Prompts({lang: plain.encode(text).ids for lang, text in SENTENCES.items()}, None)
    builder = PromptBuilder(speech, template=template, context_length=1 << 20)
    last = speech.first_code_id + speech.num_codes - 1
    ids: dict[str, list[int]] = {}
    refused: UnreadableTextError | None = None
    for lang, text in SENTENCES.items():
        try:
            ids[lang] = list(builder.build(text).ids)
        except UnreadableTextError as error:
            refused = error
    if refused is not None and not ids:
        raise refused
    return Prompts(ids, (min(speech.first_code_id, speech.end_id), max(last, speech.end_id)))
