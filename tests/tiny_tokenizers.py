"""Tokenizers of a few pieces, for tests of pairs with two vocabularies."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


def byte_pairs(
    merges: list[tuple[str, str]], pieces: list[str], *, spaces: str = "Ġ"
) -> PreTrainedTokenizerBase:
    """Return a tokenizer of these pieces and of what the merges make of them."""
    joined = [*pieces, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(joined)}, merges)
    )
    if spaces == "Ġ":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=spaces, prepend_scheme="never"
        )
        tokenizer.decoder = decoders.Metaspace(replacement=spaces, prepend_scheme="never")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TARGET = byte_pairs([("a", "b"), ("Ġ", "a"), ("ab", "c")], ["a", "b", "c", "Ġ", "d"])
SPACED = byte_pairs([("c", "a"), ("▁", "a")], ["▁", "d", "c", "b", "a", "e"], spaces="▁")
