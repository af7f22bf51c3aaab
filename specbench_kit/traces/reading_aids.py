"""What a trace holds to read its answers by, without the tokenizer and the dataset: the text of its
tokens, and the tools of its conversations.
"""

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METADATA = b"specbench_kit.reading_aids"
LARGEST = 1 << 28
"""The most bytes that the aids of a trace may take unpacked."""
SPACE = "▁"
"""What stands for a space in the vocabularies of SentencePiece."""
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
"""The bytes that GPT-2's vocabulary writes as the character of this number; the others follow in
order from 256 on.
"""
BYTE_OF_LETTER = {chr(byte): byte for byte in PRINTED} | {
    chr(256 + place): byte
    for place, byte in enumerate(byte for byte in range(256) if byte not in PRINTED)
}


class ReadingAids(msgspec.Struct, frozen=True):
    """The bytes of every token of a trace by its id, the ids of special tokens, and the tools of
    each conversation that has some, as JSON.
    """

    tokens: dict[int, bytes] = {}
    special: list[int] = []
    tools: dict[str, str] = {}

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of tokens, as the tokenizer's method of this name does."""
        special = set(self.special) if skip_special_tokens else ()
        return b"".join(
            self.tokens.get(token, b"") for token in token_ids if token not in special
        ).decode("utf-8", "replace")

    def packed(self) -> bytes:
        """Return the content of the trace's metadata."""
        return zlib.compress(msgspec.msgpack.encode(self), level=9)

    @classmethod
    def unpack(cls, content: bytes) -> "ReadingAids":
        """Return the aids that `packed` wrote; raise ValueError for anything else."""
        unpacking = zlib.decompressobj()
        try:
            unpacked = unpacking.decompress(content, LARGEST)
        except zlib.error as error:
            raise ValueError(f"its texts cannot be read: {error}") from error
        if not unpacking.eof:
            raise ValueError("its texts end too early, or are too large")
        try:
            return msgspec.msgpack.decode(unpacked, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"its texts cannot be read: {error}") from error


def reading_aids(
    tokenizer: "PreTrainedTokenizerBase",
    tokens: Collection[int],
    answers: Sequence[Sequence[int]],
    tools: Mapping[str, str],
) -> ReadingAids | None:
    """Return the aids of a trace with these tokens and answers; None if the answers cannot be put
    together from the bytes of their tokens as the tokenizer does it.
    """
    tokens = sorted(tokens)
    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(tokens)]
    added = set(tokenizer.get_added_vocab().values())
    special = sorted(set(tokenizer.all_special_ids).intersection(tokens))
    for read in (_by_letters, _by_words):
        content = {
            token: piece.encode() if token in added else read(piece)
            for token, piece in zip(tokens, pieces, strict=True)
        }
        aids = ReadingAids(content, special, dict(tools))
        # Some tokenizers leave out the space before the first word of a text.
        if all(
            str(tokenizer.decode(answer)) in (text := aids.decode(answer), text[1:])
            for answer in answers
        ):
            return aids
    return None


def _by_letters(piece: str) -> bytes:
    """Return the bytes of a piece in which each byte is a letter."""
    return b"".join(
        BYTE_OF_LETTER[letter].to_bytes() if letter in BYTE_OF_LETTER else letter.encode()
        for letter in piece
    )


def _by_words(piece: str) -> bytes:
    """Return the bytes of a piece of SentencePiece: a byte such as `<0xE2>`, or a text."""
    if byte := BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    return piece.replace(SPACE, " ").encode()
