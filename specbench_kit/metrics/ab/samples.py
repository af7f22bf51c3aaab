"""Sampled outputs of two servers compared: do the same prompts get tokens and lengths of the same distribution?

A pair is the answers of both servers to one prompt in one repeat. If both servers have one distribution, the answers of
a pair may be swapped, also where both servers draw with the same seed; random swaps show how large differences are by
chance.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specbench_kit.metrics.ab.answers import StreamedAnswer
from specbench_kit.metrics.ab.summary import SampleTest
from specbench_kit.metrics.statistics import Array

POSITIONS = 8
"""First tokens of an answer that are compared; the very first comes from the prompt, and drafts begin after it."""
FEWEST_PAIRS = 24
"""Fewer pairs could hide gross errors, and are not compared."""
DRAWS = 4000
"""Random swaps of all pairs, with which the servers as they are get compared."""
ROUNDING = 1e-9

Dialogue = Sequence[StreamedAnswer]
"""The answers to the turns of one dialogue, in order; a single one for most prompts."""
Pairs = Mapping[str, Sequence[tuple[Dialogue, Dialogue]]]
"""The pairs of each prompt, one for each repeat that both servers answered."""


def compare_samples(pairs: Pairs, level: float) -> SampleTest | None:
    """Return how likely such differences are between servers with one distribution; None for too few pairs.

    Four statistics are tested together, so that the chance of any false alarm is `level`: first tokens and lengths,
    each over all prompts, for faults that many prompts share, and at the prompt that differs most.
    """
    # A prompt with a single pair says nothing: its difference has the same size either way round.
    known = {prompt: of_prompt for prompt, of_prompt in pairs.items() if len(of_prompt) > 1}
    samples = sum(map(len, known.values()))
    if samples < FEWEST_PAIRS:
        return None
    random = np.random.default_rng(0)
    names, tokens, lengths = list(known), [], []
    for of_prompt in known.values():
        signs = random.choice([-1.0, 1.0], (1 + DRAWS, len(of_prompt)))
        signs[0] = 1.0
        tokens.append(_scaled(_token_differences(of_prompt, signs)))
        lengths.append(signs @ _length_differences(of_prompt))
    by_prompt = [np.stack(tokens), np.abs(_scaled(np.stack(lengths), centre=False))]
    statistics = np.stack(
        [by_prompt[0].sum(0), np.abs(np.sum(lengths, axis=0)), by_prompt[0].max(0), by_prompt[1].max(0)]
    )
    chances = _joint_chances(statistics)
    extreme = [names[int(values[:, 0].argmax())] for values in by_prompt]
    titles = ["first tokens", "lengths", f"first tokens of {extreme[0]}", f"lengths of {extreme[1]}"]
    shown = [title for title, chance in zip(titles, chances, strict=True) if chance < level]
    return SampleTest(len(known), samples, float(min(chances)), level, shown)


def _token_differences(pairs: Sequence[tuple[Dialogue, Dialogue]], signs: Array) -> Array:
    """Return [1 + draws]: how far the shares of tokens differ, squared and summed over positions and turns."""
    turns = min(len(dialogue) for pair in pairs for dialogue in pair)
    differences = []
    for turn in range(turns):
        sides = [[pair[side][turn] for pair in pairs] for side in (0, 1)]
        # Token ids tell more than words, but both servers must name them.
        has_ids = all(answer.token_ids is not None for side in sides for answer in side)
        for position in range(POSITIONS):
            units = [_unit(answer, position, has_ids) for side in sides for answer in side]
            kinds, codes = np.unique(units, return_inverse=True)
            shares = np.eye(len(kinds))[codes]
            differences.append(shares[: len(pairs)] - shares[len(pairs) :])
    # |signs x differences|^2, by way of the products of pairs, of which there are few.
    columns = np.concatenate(differences, axis=1)
    return np.asarray(((signs @ (columns @ columns.T)) * signs).sum(axis=1), dtype=np.float64)


def _length_differences(pairs: Sequence[tuple[Dialogue, Dialogue]]) -> Array:
    """Return [pairs]: the difference of the lengths of both answers, in standard deviations of all of them."""
    sizes = np.array([[sum(answer.tokens for answer in dialogue) for dialogue in pair] for pair in pairs], np.float64)
    return np.asarray((sizes[:, 0] - sizes[:, 1]) / (sizes.std() or 1.0), dtype=np.float64)


def _unit(answer: StreamedAnswer, position: int, has_ids: bool) -> str:
    """Return the token at a position, or the word where servers do not name their tokens; empty after the end."""
    units: Sequence[object] = (answer.token_ids or ()) if has_ids else (answer.text or "").split()
    return str(units[position]) if position < len(units) else ""


def _scaled(values: Array, centre: bool = True) -> Array:
    """Return values [..., 1 + draws] in standard deviations over the draws; 0 where draws do not differ."""
    spread = values.std(axis=-1, keepdims=True)
    moved = values - values.mean(axis=-1, keepdims=True) if centre else values
    scaled: Array = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > ROUNDING)
    return scaled


def _joint_chances(statistics: Array) -> Array:
    """Return [statistics]: the chance that any is as extreme as each is in draw 0 (min-P, Westfall and Young 1993)."""
    own: Array = np.stack([_chances(values) for values in statistics])
    smallest = own.min(axis=0)
    return np.array([(smallest <= chance + ROUNDING).mean() for chance in own[:, 0]])


def _chances(values: Array) -> Array:
    """Return the share of draws whose value is at least as large as each draw's."""
    ordered: NDArray[np.float64] = np.sort(values)
    return 1 - np.searchsorted(ordered, values - ROUNDING, side="left") / len(values)
