"""A piece of text and a preset -> the token ids that make the model speak it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from phoonnx_llasa.bundle import LLASA_PROMPT
from phoonnx_llasa.errors import PromptTooLongError, TokenizerError, UnreadableTextError
from phoonnx_llasa.files import read_json
from phoonnx_llasa.presets import Preset

__all__ = ["LLASA_PROMPT", "Prompt", "PromptBuilder", "SpeechTokenizer"]

LOG = logging.getLogger(__name__)

SPEECH_END: Final = "<|SPEECH_GENERATION_END|>"
_CONTROL_TOKEN: Final = re.compile(r"(<\|[^|<>]{1,64}\|>)")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is given before it speaks."""

    ids: tuple[int, ...]
    room: int
    """Codes that may still be generated before the context is full."""
    shared: int = 0
    """How many of the first ids every piece of the same preset begins with."""


class SpeechTokenizer:
    """tokenizer.json, with control tokens and text kept strictly apart.

    Control tokens are looked up by name; text goes through the checkpoint's own BPE without any of
    the added tokens, so whatever a user writes, it stays text. The ids are those of the whole
    tokenizer on the whole prompt, since an added token always ends the segment before it.

    Attributes:
        num_codes: entries of the codebook.
        first_code_id: id of ``<|s_0|>``; the speech tokens are one contiguous block from there.
        end_id: id of ``<|SPEECH_GENERATION_END|>``.
    """

    def __init__(self, path: Path, num_codes: int | None = None) -> None:
        """Load a tokenizer.

        Args:
            num_codes: how many speech tokens there must be; None takes what is there.

        Raises:
            TokenizerError: the file is no tokenizer, a token is missing, or the speech tokens are
                not contiguous.
        """
        self._path = path
        data = read_json(path)
        if not isinstance(data, dict) or "model" not in data:
            raise TokenizerError(path, 'is no tokenizer: it has no "model"')
        try:
            self._added = {str(t["content"]): int(t["id"]) for t in data.get("added_tokens") or ()}
            # Without the added tokens nothing in a text can match one, and loading takes a
            # fraction of the time: Llasa has 65,792 of them.
            self._bpe = Tokenizer.from_str(
                json.dumps(
                    {
                        **data,
                        "added_tokens": [],
                        "post_processor": None,
                        "padding": None,
                        "truncation": None,
                    },
                    ensure_ascii=False,
                )
            )
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(
                path, f"cannot be loaded: {error}", hint="fetch it again"
            ) from error
        self.first_code_id = self.control_id("<|s_0|>")
        self.end_id = self.control_id(SPEECH_END)
        self.num_codes = self._count_codes(num_codes)
        self._control_ids = frozenset(self._added.values())

    def control_id(self, name: str) -> int:
        """The id of one control token.

        Raises:
            TokenizerError: the tokenizer has no such token.
        """
        found = self._added.get(name)
        if found is None:
            found = self._bpe.token_to_id(name)
        if found is None:
            raise TokenizerError(
                self._path, f"has no token {name!r}", hint="it belongs to another model"
            )
        return found

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; never one of a control token."""
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        if self._control_ids.isdisjoint(ids):
            return ids
        # A vocabulary that lists its control tokens as words too: no single character is one.
        return [
            token
            for character in text
            for token in self._bpe.encode(character, add_special_tokens=False).ids
            if token not in self._control_ids
        ]

    def unknown_letters(self, text: str) -> str:
        """The letters and digits of a text that no token stands for: the model cannot say them."""
        letters = dict.fromkeys(filter(str.isalnum, text))
        return "".join(letter for letter in letters if not self.encode_text(letter))

    def encode_template(self, template: str) -> list[int]:
        """Ids of a trusted template: ``<|...|>`` are control tokens, the rest is text.

        Raises:
            TokenizerError: the template names a token that does not exist.
        """
        ids: list[int] = []
        for part in _CONTROL_TOKEN.split(template):
            if _CONTROL_TOKEN.fullmatch(part):
                ids.append(self.control_id(part))
            elif part:
                ids.extend(self.encode_text(part))
        return ids

    def _count_codes(self, expected: int | None) -> int:
        count = 0
        while True:
            name = f"<|s_{count}|>"
            found = self._added.get(name, self._bpe.token_to_id(name))
            if found is None:
                break
            if found != self.first_code_id + count:
                raise TokenizerError(
                    self._path, f"token {name!r} has id {found}: the speech tokens have a gap"
                )
            count += 1
        if expected is not None and count != expected:
            raise TokenizerError(
                self._path, f"has {count} speech tokens, config.json says {expected}"
            )
        return count


class PromptBuilder:
    """Puts prompts together as the checkpoint was trained on them."""

    def __init__(self, tokenizer: SpeechTokenizer, *, template: str, context_length: int) -> None:
        """Encode the fixed parts once.

        Raises:
            TokenizerError: the template names a token that does not exist.
        """
        before, after = template.split("{text}")
        self._tokenizer = tokenizer
        self._before = tokenizer.encode_template(before)
        self._after = tokenizer.encode_template(after)
        self.context_length = context_length

    def build(self, text: str, preset: Preset | None = None) -> Prompt:
        """Prompt for one piece.

        With a preset, its transcript stands before the text and its codes after the template, so
        that the model goes on in the middle of one utterance (upstream's own way of cloning).

        Raises:
            UnreadableTextError: the tokenizer knows no letter of the text.
            PromptTooLongError: not a single code would fit behind it.
        """
        whole = text if preset is None else f"{preset.text} {text}"
        text_ids = self._tokenizer.encode_text(whole)
        self._check_readable(text)
        shared = len(self._before)
        if preset is not None:
            shared += _common(text_ids, self._tokenizer.encode_text(preset.text))
        ids = [*self._before, *text_ids, *self._after]
        if preset is not None:
            first = self._tokenizer.first_code_id
            ids.extend(first + code for code in preset.codes)
        room = self.context_length - len(ids)
        if room < 1:
            raise PromptTooLongError(
                len(ids), self.context_length, hint="use shorter pieces or a shorter preset"
            )
        return Prompt(tuple(ids), room, shared)

    def _check_readable(self, text: str) -> None:
        unknown = self._tokenizer.unknown_letters(text)
        if unknown and set(unknown) == set(filter(str.isalnum, text)):
            raise UnreadableTextError(text)
        if unknown:
            LOG.warning("this model does not know %r and leaves it out", unknown)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the beginning that two sequences share."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
