"""Ranks of a synthetic pair that bring as many tokens per verification as were published."""

from dataclasses import replace

from specbench_kit.errors import SkitError
from specbench_kit.experiments.decoding import Decoded, Series

TAIL = (0.3, 0.12)
"""Of what the first rank leaves, the shares of the second and the third (ours)."""
STEPS = 7


def draft_of(first: float, others: str = "") -> str:
    """The pair whose likeliest token is right with that chance; `others` are further options."""
    ranks = "+".join(f"{rank:.4g}" for rank in (first, *((1 - first) * share for share in TAIL)))
    return f"ranks={ranks},{others}".rstrip(",")


def fit(decoded: Decoded, series: Series, tokens: float, others: str = "") -> str:
    """The `draft` with which a method commits so many tokens a verification, by halving the range of the first rank."""
    low, high = 0.25, 0.98
    for _ in range(STEPS):
        middle = (low + high) / 2
        found = _tokens(decoded, replace(series, draft=draft_of(middle, others)))
        low, high = (middle, high) if found < tokens else (low, middle)
    if high == 0.98 or low == 0.25:
        raise SkitError(f"no pair brings {tokens:g} tokens a verification with {series.method}: draft longer")
    return draft_of((low + high) / 2, others)


def _tokens(decoded: Decoded, series: Series) -> float:
    rounds = [one for record in decoded.decode(series) for one in record.rounds[:-1]]
    return sum(one.committed for one in rounds) / len(rounds)
