"""Text to ids and back."""

import re
from collections.abc import Sequence

import torch


class TokenError(ValueError):
    """A text that has no tokens here. One line: which, where, what."""


class Tokenizer:
    """Splits text at a pattern, from left to right. A subclass says what a token is.

    name:    of the text, for errors
    pattern: matches one token
    special: how many ids at the start of the vocabulary are no text
    begin, end: ids around each text, an end if there is one; pad: the id that fills up
    """

    name: str
    pattern: re.Pattern
    special: int
    begin: int
    end: int | None = None
    pad: int

    def __init__(self, tokens: Sequence[str]):
        self.tokens = list(tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def split(self, text: str) -> list[str]:
        """The tokens of one text. Raises TokenError."""
        tokens, at = [], 0
        while at < len(text):
            match = self.pattern.match(text, at)
            token = match.group() if match else text[at]
            if token not in self.ids:
                raise TokenError(f"{self.name} {text!r}: unknown token {token!r} at position {at}")
            tokens.append(token)
            at += len(token)
        return tokens

    def encode(self, texts: Sequence[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [n, length] int64 as begin, tokens, end, padding, and mask [n, length] bool, False on padding.

        Raises TokenError.
        """
        ids = torch.full((len(texts), length), self.pad)
        ends = "1 end" if self.end is None else "2 ends"
        for row, text in zip(ids, texts, strict=True):
            tokens = self.split(text)
            new = [self.begin, *(self.ids[token] for token in tokens)]
            if self.end is not None:
                new.append(self.end)
            if len(new) > length:
                raise TokenError(f"{self.name} {text!r}: {len(tokens)} tokens and {ends} do not fit into {length}")
            row[: len(new)] = torch.tensor(new)
        return ids, ids != self.pad

    def decode(self, ids: torch.Tensor) -> list[str]:
        """Texts of ids [n, length], each up to its end, without special tokens."""
        texts = []
        for row in ids.tolist():
            row = row[: row.index(self.end)] if self.end in row else row
            texts.append("".join(self.tokens[i] for i in row if i >= self.special))
        return texts
