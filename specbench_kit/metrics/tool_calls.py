"""Acceptance in conversations with tools: by the kind of token, and by the turn of the conversation.

The kind of a token is that of most of its characters, which a parser of the answer tells, so that a
token with a quotation mark and the beginning of a value counts as the longer of the two.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from specbench_kit.core.typed_json import Count, Number
from specbench_kit.datasets.tool_calls import KINDS, Kind, Tools, kinds_of
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import Array, interval_of_ratio, ratio_of_sums

Decode = Callable[[Sequence[int]], str]


class KindAcceptance(Struct, frozen=True):
    """The tokens of one kind in the answers of a run, and how drafting did on them."""

    kind: Annotated[Kind, Meta(description="what the tokens are in their answers")]
    tokens: Annotated[Count, Meta(description="tokens of the kind in all answers")]
    drafted: Annotated[
        Count,
        Meta(description="tokens of the kind at whose place a drafted token was verified"),
    ]
    accepted: Annotated[
        Count, Meta(description="tokens of the kind that were drafted and accepted")
    ]
    acceptance_rate: Annotated[
        Number | None,
        Meta(description="share of 'drafted' that was accepted; null if none was drafted"),
    ]
    interval: Annotated[
        list[Number] | None,
        Meta(description="95% interval of the rate over conversations; null for too few"),
    ]


class TurnAcceptance(Struct, frozen=True):
    """The answers at one turn of all conversations, whose prompts grow from turn to turn."""

    turn: Annotated[Count, Meta(description="turn of the conversation, from 1")]
    requests: Annotated[Count, Meta(description="answers at this turn")]
    prompt_tokens: Annotated[Number, Meta(description="mean tokens of their prompts")]
    output_tokens: Annotated[Number, Meta(description="mean tokens of the answers")]
    rounds: Annotated[Count, Meta(description="verifications")]
    acceptance_length: Annotated[
        Number, Meta(description="committed tokens per verification, the bonus token included")
    ]
    interval: Annotated[
        list[Number] | None,
        Meta(description="95% interval of the length over conversations; null for too few"),
    ]
    acceptance_rate: Annotated[
        Number | None,
        Meta(
            description="share of the submitted tokens that was accepted; null if none was submitted"
        ),
    ]


class ToolCallSummary(Struct, frozen=True):
    """A run's answers in conversations with tools."""

    answers: Annotated[Count, Meta(description="answers in conversations with tools")]
    calling: Annotated[Count, Meta(description="answers that call a tool")]
    valid: Annotated[
        Count,
        Meta(
            description="answers all of whose calls are whole JSON, name a tool of the conversation and have "
            "arguments that are valid by its schema"
        ),
    ]
    kinds: Annotated[list[KindAcceptance], Meta(description="tokens by their kind")]
    turns: Annotated[list[TurnAcceptance], Meta(description="answers by their turn")]


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer in a conversation, and which of its tokens were drafted and accepted."""

    record: RequestRecord
    conversation: str
    turn: int
    drafted: Sequence[bool]
    accepted: Sequence[bool]


class ToolAnswers:
    """Knows the conversations with tools by their ids, and tells the kinds of their answers' tokens.

    Outputs that several methods share are read once.
    """

    def __init__(self, tools: Mapping[str, Tools], decode: Decode) -> None:
        self._tools = tools
        self._decode = decode
        self._kinds: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Kind]] = {}

    def summarise(self, records: Sequence[RequestRecord]) -> ToolCallSummary | None:
        """Return the summary of a method's answers; None if no conversation has tools."""
        answers = []
        for record in records:
            conversation, turn = _place(record)
            known = conversation in self._tools and record.finish_reason != "error"
            if known and record.output_ids and record.has_token_ids:
                answers.append(_Answer(record, conversation, turn, *_drafting(record)))
        if not answers:
            return None
        validity = [
            self._tools[answer.conversation].valid_text(answer.record.text) for answer in answers
        ]
        return ToolCallSummary(
            answers=len(answers),
            calling=sum(valid is not None for valid in validity),
            valid=sum(valid is True for valid in validity),
            kinds=self._by_kind(answers),
            turns=_by_turn(answers),
        )

    def _by_kind(self, answers: Sequence[_Answer]) -> list[KindAcceptance]:
        tokens: Counter[Kind] = Counter()
        drafted: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
        accepted: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
        for answer in answers:
            kinds = self._kinds_of(answer.record)
            tokens.update(kinds)
            for kind, is_drafted, is_accepted in zip(
                kinds, answer.drafted, answer.accepted, strict=True
            ):
                drafted[kind][answer.conversation] += is_drafted
                accepted[kind][answer.conversation] += is_accepted
        parts = []
        for kind in KINDS:
            if not tokens[kind]:
                continue
            names = [name for name, count in drafted[kind].items() if count]
            below = np.array([drafted[kind][name] for name in names], dtype=np.float64)
            above = np.array([accepted[kind][name] for name in names], dtype=np.float64)
            parts.append(
                KindAcceptance(
                    kind=kind,
                    tokens=tokens[kind],
                    drafted=int(below.sum()),
                    accepted=int(above.sum()),
                    acceptance_rate=ratio_of_sums(float(above.sum()), float(below.sum())),
                    interval=_rate_interval(above, below),
                )
            )
        return parts

    def _kinds_of(self, record: RequestRecord) -> list[Kind]:
        """Return the kind of each token of an answer."""
        key = tuple(record.prompt_ids), tuple(record.output_ids)
        if key not in self._kinds:
            self._kinds[key] = token_kinds(
                record.output_ids, self._decode, self._decode(record.prompt_ids)
            )
        return self._kinds[key]


def _rate_interval(above: Array, below: Array) -> list[float] | None:
    bounds = interval_of_ratio(above, below)
    return bounds and [bounds[0], min(1.0, bounds[1])]


def token_kinds(output_ids: Sequence[int], decode: Decode, context: str) -> list[Kind]:
    """Return the kind of each token; one that adds no text is as the one before it."""
    kinds = kinds_of(decode(output_ids), context)
    found: list[Kind] = []
    begin = 0
    for count in range(1, len(output_ids) + 1):
        # Half a character is a mark of its own until the next token completes it.
        end = min(len(kinds), len(decode(output_ids[:count]).rstrip("\ufffd")))
        end = len(kinds) if count == len(output_ids) else max(begin, end)
        own = Counter(kinds[begin:end])
        found.append(own.most_common(1)[0][0] if own else (found[-1] if found else "free text"))
        begin = end
    return found


def _place(record: RequestRecord) -> tuple[str, int]:
    """Return the conversation of a request and its turn, from 1."""
    if not record.dialogue:
        return record.request_id, 1
    _, _, turn = record.request_id.rpartition("/")
    return record.dialogue, int(turn) if turn.isdecimal() else 1


def _drafting(record: RequestRecord) -> tuple[list[bool], list[bool]]:
    """Return for each token of an answer whether one was drafted for its place, and accepted."""
    drafted: list[bool] = [False] * record.forced_first
    accepted: list[bool] = [False] * record.forced_first
    for part in record.rounds:
        own = min(part.accepted, part.committed)
        depth = part.submitted if part.deepest is None else part.deepest
        # The token behind the accepted ones is the target's own, in place of a drafted one that was
        # wrong, or where the draft had ended.
        others = part.committed - own
        drafted += [True] * own + [depth > part.accepted] * others + [False] * part.forced
        accepted += [True] * own + [False] * (others + part.forced)
    size = len(record.output_ids)
    missing = [False] * max(0, size - len(drafted))
    return (drafted + missing)[:size], (accepted + missing)[:size]


def _by_turn(answers: Sequence[_Answer]) -> list[TurnAcceptance]:
    by_turn: defaultdict[int, list[_Answer]] = defaultdict(list)
    for answer in answers:
        by_turn[answer.turn].append(answer)
    parts = []
    for turn, own in sorted(by_turn.items()):
        rounds: Counter[str] = Counter()
        committed: Counter[str] = Counter()
        for answer in own:
            rounds[answer.conversation] += len(answer.record.rounds)
            committed[answer.conversation] += sum(r.committed for r in answer.record.rounds)
        names = [name for name, count in rounds.items() if count]
        if not names:
            continue
        below = np.array([rounds[name] for name in names], dtype=np.float64)
        above = np.array([committed[name] for name in names], dtype=np.float64)
        every = [part for answer in own for part in answer.record.rounds]
        parts.append(
            TurnAcceptance(
                turn=turn,
                requests=len(own),
                prompt_tokens=float(np.mean([len(answer.record.prompt_ids) for answer in own])),
                output_tokens=float(np.mean([len(answer.record.output_ids) for answer in own])),
                rounds=len(every),
                acceptance_length=float(above.sum() / below.sum()),
                interval=interval_of_ratio(above, below),
                acceptance_rate=ratio_of_sums(
                    float(sum(part.accepted for part in every)),
                    float(sum(part.submitted for part in every)),
                ),
            )
        )
    return parts
