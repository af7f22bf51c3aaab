"""Sampled outputs of two servers compared: do the same prompts get tokens and lengths of the same distribution?"""

from collections.abc import Mapping, Sequence

import numpy as np

from specbench_kit.metrics.ab.answers import StreamedAnswer
from specbench_kit.metrics.ab.summary import SampleTest
from specbench_kit.metrics.statistics import Array

POSITIONS = 8
"""Tokens at the beginning of an answer that are compared; the first comes from the prompt, and drafts begin behind it."""
FEWEST = 24
"""Fewer answers of each server could hide gross errors, and are not compared."""
DRAWS = 4000
"""Random assignments of the answers to the servers, with which the real one is compared."""


def compare_samples(
    first: Mapping[str, Sequence[StreamedAnswer]], second: Mapping[str, Sequence[StreamedAnswer]], level: float
) -> SampleTest | None:
    """Return how likely such differences are between servers with one distribution; None for too few answers.

    The answers to one prompt are exchangeable then, and are assigned to the servers at random; differences add up over
    prompts, so that a few answers to each of many prompts show what they can.
    """
    prompts = [prompt for prompt in first if len(first[prompt]) > 1 and len(second.get(prompt, ())) > 1]
    samples = min(sum(len(side[prompt]) for prompt in prompts) for side in (first, second))
    if samples < FEWEST:
        return None
    random = np.random.default_rng(0)
    tokens, lengths = np.zeros(1 + DRAWS), np.zeros(1 + DRAWS)
    for prompt in prompts:
        answers = [*first[prompt], *second[prompt]]
        weights = _weights(len(first[prompt]), len(second[prompt]), random)
        sizes = np.array([answer.tokens for answer in answers], dtype=np.float64)
        lengths += np.abs(weights @ sizes) / (sizes.std() or 1.0)
        for position in range(POSITIONS):
            _, codes = np.unique([_unit(answer, position) for answer in answers], return_inverse=True)
            tokens += np.abs(weights @ np.eye(codes.max() + 1)[codes]).sum(axis=1)
    chances = [float((statistic >= statistic[0] - 1e-9).mean()) for statistic in (tokens, lengths)]
    return SampleTest(len(prompts), samples, *chances, level)


def _weights(first: int, second: int, random: np.random.Generator) -> Array:
    """Return [1 + draws, answers]: the weight of each answer in the difference of means, as it was, then shuffled."""
    actual = np.array([1 / first] * first + [-1 / second] * second)
    shuffled = random.permuted(np.tile(actual, (DRAWS, 1)), axis=1)
    return np.vstack([actual, shuffled])


def _unit(answer: StreamedAnswer, position: int) -> str:
    """Return the token at a position, or the word where a server does not name its tokens; empty behind the end."""
    units = answer.token_ids if answer.token_ids is not None else (answer.text or "").split()
    return str(units[position]) if position < len(units) else ""
