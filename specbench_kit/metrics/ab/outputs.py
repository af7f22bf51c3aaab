"""The correctness gate: are the outputs of two servers the same, and is a server's own output the same every time?"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from specbench_kit.metrics.ab.answers import AnswerRecord, StreamedAnswer
from specbench_kit.metrics.ab.samples import compare_samples
from specbench_kit.metrics.ab.summary import Agreement, Divergence, Gate, OutputCheck

SHOWN_DIVERGENCES = 8
"""Divergences that a summary holds for each load."""
CONTEXT = 32
"""Characters, or tokens, that are shown around a divergence."""
CHANCE = 0.05
"""The chance below which a share of different outputs is not put down to a server's own variation."""

Answers = Mapping[tuple[str, int], StreamedAnswer]
"""The answers of one server under one load, by request and repeat."""


def answers_of(records: Iterable[AnswerRecord], load: str, server: str) -> dict[tuple[str, int], StreamedAnswer]:
    """Return the answers of a server under a load."""
    return {
        (record.key.request_id, record.key.repeat): record.answer
        for record in records
        if record.answer is not None and (record.key.load, record.key.server) == (load, server)
    }


def check_outputs(
    records: Sequence[AnswerRecord], load: str, loads: Sequence[str], names: Sequence[str], *, sampled: bool
) -> OutputCheck:
    """Compare all outputs under one load: greedy ones one by one, and sampled ones by their distributions."""
    first, second = (answers_of(records, load, name) for name in names)
    if sampled:
        test = compare_samples(_by_prompt(first), _by_prompt(second), CHANCE / (2 * len(loads)))
        if test is None:
            return OutputCheck("not compared", Agreement())
        is_different = min(test.tokens, test.lengths) < test.level
        return OutputCheck("different" if is_different else "alike in distribution", Agreement(), sampled=test)
    pairs = [(key, first[key], second[key]) for key in first if key in second]
    both = agreement((one, other) for _, one, other in pairs)
    repeated = {name: _repeated(answers) for name, answers in zip(names, (first, second), strict=True)}
    other_loads = {
        name: agreement(
            (own[key], elsewhere[key])
            for other in loads
            if other != load
            for own, elsewhere in [(answers_of(records, load, name), answers_of(records, other, name))]
            for key in own.keys() & elsewhere.keys()
        )
        for name in names
    }
    known = [pair for pair in pairs if pair[1].text is not None and pair[2].text is not None]
    divergences = [divergence(key, one, other) for key, one, other in known if not same(one, other)]
    gate = gate_of(both, [*repeated.values(), *other_loads.values()])
    return OutputCheck(gate, both, repeated, other_loads, divergences[:SHOWN_DIVERGENCES])


def _repeated(answers: Answers) -> Agreement:
    return agreement(pair for asked in _by_prompt(answers).values() for pair in combinations(asked, 2))


def _by_prompt(answers: Answers) -> dict[str, list[StreamedAnswer]]:
    by_prompt: dict[str, list[StreamedAnswer]] = {}
    for (request_id, _), answer in sorted(answers.items(), key=lambda item: item[0]):
        by_prompt.setdefault(request_id, []).append(answer)
    return by_prompt


def agreement(pairs: Iterable[tuple[StreamedAnswer, StreamedAnswer]]) -> Agreement:
    """Return how many pairs of outputs are identical, of those that are known."""
    results = [same(one, other) for one, other in pairs if one.text is not None and other.text is not None]
    return Agreement(len(results), sum(results))


def same(one: StreamedAnswer, other: StreamedAnswer) -> bool:
    """Return True if two outputs have the same tokens, or the same text where a server does not name its tokens."""
    if one.token_ids is not None and other.token_ids is not None:
        return one.token_ids == other.token_ids
    return one.text == other.text


def gate_of(both: Agreement, own: Sequence[Agreement]) -> Gate:
    """Return the result: outputs that differ are put down to variation if a server differs from itself as often."""
    from scipy.stats import fisher_exact

    if not both.compared:
        return "not compared"
    if both.identical == both.compared:
        return "identical"
    for floor in own:
        different = floor.compared - floor.identical
        table = [[both.compared - both.identical, both.identical], [different, floor.identical]]
        # One-sided: are the servers different from each other more often than one of them is from itself?
        if different and float(fisher_exact(table, alternative="greater")[1]) >= CHANCE:
            return "as with itself"
    return "different"


def divergence(key: tuple[str, int], one: StreamedAnswer, other: StreamedAnswer) -> Divergence:
    """Return the first place at which two outputs differ."""
    first, second, texts = one.token_ids, other.token_ids, (one.text or "", other.text or "")
    if first is None or second is None:
        position = _first_difference(*texts)
        before = texts[0][max(0, position - CONTEXT) : position]
        parts = [text[position : position + CONTEXT] for text in texts]
        return Divergence(key[0], key[1], position, "character", before, *parts)
    position, shared = _first_difference(first, second), _first_difference(*texts)
    before = texts[0][max(0, shared - CONTEXT) : shared]
    parts = [
        f"{ids[position] if position < len(ids) else 'the end'} {text[shared : shared + CONTEXT]!r}"
        for ids, text in zip((first, second), texts, strict=True)
    ]
    return Divergence(key[0], key[1], position, "token", before, *parts)


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
