"""A process that compiles one grammar, so that a server can end it: `python -m` this module.

It reads the grammar's text from its input and prints what is wrong with it, in one line.
"""

import sys

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import library_text, read_spec, reason_of


def fault_in(text: str) -> str:
    """Return what is wrong with a grammar; empty if nothing is."""
    from llguidance import LLMatcher, LLTokenizer

    try:
        spec = read_spec(text)
    except SkitError as error:
        return str(error)
    # What takes long does not depend on the tokenizer, and one of single bytes is there at once.
    matcher = LLMatcher(LLTokenizer("byte"), library_text(spec), log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return f"not a valid {spec.kind}: {reason_of(matcher)}" if matcher.is_error() else ""


if __name__ == "__main__":
    print(fault_in(sys.stdin.buffer.read().decode(errors="replace")))
