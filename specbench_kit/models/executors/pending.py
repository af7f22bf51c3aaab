"""Tokens that a model has chosen on its device and that the host has not read yet."""

from collections.abc import Iterator, Sequence
from typing import Protocol, overload


class TokenSource(Protocol):
    """A forward whose choice of tokens may still be on its device."""

    def launch(self) -> None:
        """Start the computation, if that has not happened yet."""

    def token_of(self, row: int) -> int:
        """Wait for the result, and return the most likely next token of a row."""


class PendingToken:
    """The most likely next token of one row of a forward, read when somebody needs the number."""

    __slots__ = ("_token", "row", "source")

    def __init__(self, source: TokenSource, row: int) -> None:
        self.source = source
        self.row = row
        self._token: int | None = None

    def __int__(self) -> int:
        if self._token is None:
            self._token = self.source.token_of(self.row)
        return self._token

    @property
    def known(self) -> bool:
        """Return whether the number can be had without waiting."""
        return self._token is not None

    def deliver(self, token: int) -> None:
        """Set the number, which has arrived together with another result."""
        self._token = token


AnyToken = int | PendingToken


class PendingTokens(Sequence[int]):
    """A text of which some tokens may be pending: reading one of them waits for it, `parts` does
    not.
    """

    def __init__(self, parts: Sequence[AnyToken]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[int]:
        return map(int, self.parts)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return (
            list(map(int, self.parts[index]))
            if isinstance(index, slice)
            else int(self.parts[index])
        )


def parts_of(tokens: Sequence[int]) -> Sequence[AnyToken]:
    """Return tokens without waiting for those that are pending."""
    return tokens.parts if isinstance(tokens, PendingTokens) else tokens
