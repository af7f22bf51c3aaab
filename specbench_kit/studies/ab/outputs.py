"""The correctness gate: are the outputs of two servers the same, and is a server's own output the
same every time?

Of sampled outputs it asks whether the same prompts get tokens and lengths of the same distribution.
A pair is the answers of both servers to one prompt in one repeat.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, count, takewhile
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench_kit.live.engines.answers import AnswerRecord, StreamedAnswer
from specbench_kit.metrics.statistics import Array
from specbench_kit.runs.document import OutputAgreement
from specbench_kit.studies.ab.summary import Divergence, Gate, OutputCheck, SampleTest

T = TypeVar("T")
SHOWN_DIVERGENCES = 8
"""Divergences that a summary holds for each load."""
CONTEXT = 32
"""Characters, or tokens, that are shown around a divergence."""
CHANCE = 0.05
"""The chance below which a share of different outputs is not put down to a server's own
variation.
"""

Dialogues = Mapping[tuple[str, int], Sequence[StreamedAnswer]]
"""The answers of one server under one load, by prompt and repeat: one for each turn of the prompt's
dialogue.
"""


def dialogues_of(records: Iterable[AnswerRecord], load: str, server: str) -> Dialogues:
    """Return the known answers of a server under a load, up to the first turn of a dialogue that
    has none.
    """
    turns: dict[tuple[str, int], dict[int, StreamedAnswer]] = {}
    for record in records:
        key = record.key
        answer = record.answer
        if (
            answer is not None
            and answer.text is not None
            and (key.load, key.server) == (load, server)
        ):
            turns.setdefault((key.request_id, key.repeat), {})[key.dialogue_turn] = answer
    dialogues = {}
    for place, answers in turns.items():
        if 0 in answers:
            dialogues[place] = [answers[turn] for turn in takewhile(answers.__contains__, count())]
    return dialogues


def check_outputs(
    records: Sequence[AnswerRecord],
    load: str,
    loads: Sequence[str],
    names: Sequence[str],
    *,
    sampled: bool,
) -> OutputCheck:
    """Compare all outputs under one load: greedy ones one by one, and sampled ones by their
    distributions.
    """
    first, second = (dialogues_of(records, load, name) for name in names)
    other_loads = {}
    for name, own in zip(names, (first, second), strict=True):
        same_prompts: list[tuple[Dialogue, Dialogue]] = []
        for other in loads:
            if other != load:
                elsewhere = dialogues_of(records, other, name)
                same_prompts += [
                    (own[place], elsewhere[place]) for place in own.keys() & elsewhere.keys()
                ]
        other_loads[name] = agreement(same_prompts)
    pairs = {place: (first[place], second[place]) for place in first if place in second}
    if sampled:
        test = compare_samples(_by_prompt(pairs), CHANCE / len(loads))
        gate: Gate = (
            "not compared"
            if test is None
            else "different"
            if test.shown
            else "alike in distribution"
        )
        return OutputCheck(gate, OutputAgreement(), other_loads=other_loads, sampled=test)
    both = agreement(pairs.values())
    repeated = {name: _repeated(own) for name, own in zip(names, (first, second), strict=True)}
    divergences = [
        divergence(place, turn, one, other)
        for place, pair in pairs.items()
        for turn, (one, other) in enumerate(of_one_context(*pair))
        if not same(one, other)
    ]
    gate = gate_of(both, [*repeated.values(), *other_loads.values()])
    return OutputCheck(gate, both, repeated, other_loads, divergences[:SHOWN_DIVERGENCES])


def of_one_context(
    first: Sequence[StreamedAnswer], second: Sequence[StreamedAnswer]
) -> Iterator[tuple[StreamedAnswer, StreamedAnswer]]:
    """Yield the answers of two dialogues by turn, up to the first that differ: later turns follow
    other answers.
    """
    for one, other in zip(first, second, strict=False):
        yield one, other
        if not same(one, other):
            return


def _repeated(dialogues: Dialogues) -> OutputAgreement:
    return agreement(
        pair for of_prompt in _by_prompt(dialogues).values() for pair in combinations(of_prompt, 2)
    )


def _by_prompt(values: Mapping[tuple[str, int], T]) -> dict[str, list[T]]:
    """Return values of every repeat by prompt."""
    by_prompt: dict[str, list[T]] = {}
    for (request_id, _), value in sorted(values.items(), key=lambda item: item[0]):
        by_prompt.setdefault(request_id, []).append(value)
    return by_prompt


def agreement(
    pairs: Iterable[tuple[Sequence[StreamedAnswer], Sequence[StreamedAnswer]]],
) -> OutputAgreement:
    """Return how many pairs of outputs are identical, of those that follow the same earlier
    turns.
    """
    results = [same(one, other) for pair in pairs for one, other in of_one_context(*pair)]
    return OutputAgreement(len(results), sum(results))


def same(one: StreamedAnswer, other: StreamedAnswer) -> bool:
    """Return True if two outputs have the same tokens, or the same text where a server does not
    name its tokens.
    """
    if one.token_ids is not None and other.token_ids is not None:
        return one.token_ids == other.token_ids
    return one.text == other.text


def gate_of(both: OutputAgreement, own: Sequence[OutputAgreement]) -> Gate:
    """Return the result: outputs that differ are put down to variation if a server differs from
    itself as often.
    """
    from scipy.stats import fisher_exact

    if not both.compared:
        return "not compared"
    if both.identical == both.compared:
        return "identical"
    for floor in own:
        different = floor.compared - floor.identical
        table = [[both.compared - both.identical, both.identical], [different, floor.identical]]
        # One-sided: are the servers different from each other more often than one of them is from
        # itself?
        if different and float(fisher_exact(table, alternative="greater")[1]) >= CHANCE:
            return "as with itself"
    return "different"


def divergence(
    place: tuple[str, int], turn: int, one: StreamedAnswer, other: StreamedAnswer
) -> Divergence:
    """Return the first place at which two outputs of a turn of a dialogue differ."""
    first = one.token_ids
    second = other.token_ids
    texts = (one.text or "", other.text or "")
    shared = _first_difference(*texts)
    before = texts[0][max(0, shared - CONTEXT) : shared]
    rest = [text[shared : shared + CONTEXT] for text in texts]
    if first is None or second is None:
        return Divergence(*place, shared, "character", before, rest[0], rest[1], turn)
    position = _first_difference(first, second)
    parts = [
        f"{ids[position] if position < len(ids) else 'the end'} {text!r}"
        for ids, text in zip((first, second), rest, strict=True)
    ]
    return Divergence(*place, position, "token", before, parts[0], parts[1], turn)


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


POSITIONS = 8
"""First tokens of an answer that are compared; the very first comes from the prompt, and drafts
begin after it.
"""
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
    """Return how likely such differences are between servers with one distribution; None for too
    few pairs.

    Four statistics are tested together, so that the chance of any false alarm is `level`: first
    tokens and lengths, each over all prompts, for faults that many prompts share, and at the prompt
    that differs most.
    """
    # A prompt with a single pair says nothing: its difference has the same size either way round.
    known = {prompt: of_prompt for prompt, of_prompt in pairs.items() if len(of_prompt) > 1}
    samples = sum(map(len, known.values()))
    if samples < FEWEST_PAIRS:
        return None
    random = np.random.default_rng(0)
    names = list(known)
    tokens = []
    lengths = []
    for of_prompt in known.values():
        signs = random.choice([-1.0, 1.0], (1 + DRAWS, len(of_prompt)))
        signs[0] = 1.0
        tokens.append(_scaled(_token_differences(of_prompt, signs)))
        lengths.append(signs @ _length_differences(of_prompt))
    by_prompt = [np.stack(tokens), np.abs(_scaled(np.stack(lengths), centre=False))]
    statistics = np.stack(
        [
            by_prompt[0].sum(0),
            np.abs(np.sum(lengths, axis=0)),
            by_prompt[0].max(0),
            by_prompt[1].max(0),
        ]
    )
    chances = _joint_chances(statistics)
    extreme = [names[int(values[:, 0].argmax())] for values in by_prompt]
    titles = [
        "first tokens",
        "lengths",
        f"first tokens of {extreme[0]}",
        f"lengths of {extreme[1]}",
    ]
    shown = [title for title, chance in zip(titles, chances, strict=True) if chance < level]
    return SampleTest(len(known), samples, float(min(chances)), level, shown)


def _token_differences(pairs: Sequence[tuple[Dialogue, Dialogue]], signs: Array) -> Array:
    """Return [1 + draws]: how far the shares of tokens differ, squared and summed over positions
    and turns.
    """
    turns = min(len(dialogue) for pair in pairs for dialogue in pair)
    differences = []
    for turn in range(turns):
        first = [pair[0][turn] for pair in pairs]
        second = [pair[1][turn] for pair in pairs]
        sides = [first, second]
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
    """Return [pairs]: the difference of the lengths of both answers, in standard deviations of all
    of them.
    """
    sizes = np.zeros((len(pairs), 2))
    for row, pair in enumerate(pairs):
        for side, dialogue in enumerate(pair):
            sizes[row, side] = sum(answer.tokens for answer in dialogue)
    return np.asarray((sizes[:, 0] - sizes[:, 1]) / (sizes.std() or 1.0), dtype=np.float64)


def _unit(answer: StreamedAnswer, position: int, has_ids: bool) -> str:
    """Return the token at a position, or the word where servers do not name their tokens; empty
    after the end.
    """
    units: Sequence[object] = (answer.token_ids or ()) if has_ids else (answer.text or "").split()
    return str(units[position]) if position < len(units) else ""


def _scaled(values: Array, centre: bool = True) -> Array:
    """Return values [..., 1 + draws] in standard deviations over the draws; 0 where draws do not
    differ.
    """
    spread = values.std(axis=-1, keepdims=True)
    moved = values - values.mean(axis=-1, keepdims=True) if centre else values
    scaled: Array = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > ROUNDING)
    return scaled


def _joint_chances(statistics: Array) -> Array:
    """Return [statistics]: the chance that any is as extreme as each is in draw 0 (min-P, Westfall
    and Young 1993).
    """
    own: Array = np.stack([_chances(values) for values in statistics])
    smallest = own.min(axis=0)
    return np.array([(smallest <= chance + ROUNDING).mean() for chance in own[:, 0]])


def _chances(values: Array) -> Array:
    """Return the share of draws whose value is at least as large as each draw's."""
    ordered: NDArray[np.float64] = np.sort(values)
    return 1 - np.searchsorted(ordered, values - ROUNDING, side="left") / len(values)
