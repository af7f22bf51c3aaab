"""From new tokens of a request to the rounds that made them: an engine does not say what it verified."""

from collections.abc import Sequence
from dataclasses import replace

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.engine import RoundOutcome
from specbench_kit.decoding.records import FinishReason, RequestRecord
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.engines.rows import FollowedRequest, Proposal

ENDLESS = 1 << 30
"""The largest number of output tokens of a request whose limit is not known."""


def settle(request: FollowedRequest, new: Sequence[int]) -> list[RoundOutcome]:
    """Append the new tokens to a request, and return its rounds: the verdict on its draft first, if it has one.

    Tokens beyond the draft and the target's own were decoded while the engine did not call its drafter; each of them
    counts as a round without a draft.
    """
    session, rounds = request.session, list[RoundOutcome]()
    if request.proposal is not None:
        verdict = judge(request.proposal, new)
        request.proposal = None
        rounds.append(RoundOutcome(verdict, len(verdict.path) + 1, aligned=False))
    first = not session.produced
    for token in new[sum(outcome.committed for outcome in rounds) :]:
        draft = Draft(session, TokenTree(session.tokens[-1]))
        computed = len(session.tokens) if first and not rounds else 1
        rounds.append(RoundOutcome(Verdict(draft, [], [], token, computed), 1, aligned=False))
    session.tokens += new
    return rounds


def judge(proposal: Proposal, new: Sequence[int]) -> Verdict:
    """Return the verdict that the new tokens are on a draft.

    An engine may verify a part of a draft only, because its step was full. This shows where the last new token is the
    next drafted one: had the engine verified it too, a token of the target would follow.
    """
    nodes, accepted = proposal.nodes, proposal.accepted(new)
    submitted, tokens = nodes, proposal.tokens
    if proposal.dropped or (accepted + 1 == len(new) and accepted < len(nodes) and tokens[accepted] == new[accepted]):
        submitted = nodes[:accepted]
    return Verdict(proposal.draft, submitted, nodes[:accepted], new[accepted], len(submitted) + 1)


def end_of_output(session: Session) -> tuple[int, FinishReason] | None:
    """Return the number of output tokens up to the end of the output, and why it ends; None if it goes on."""
    prompt = len(session.request.prompt_ids)
    length = min(session.produced, session.request.max_new_tokens)
    for position, token in enumerate(session.tokens[prompt : prompt + length], start=1):
        if token in session.eos_ids:
            return position, "eos"
    return (length, "length") if session.produced >= session.request.max_new_tokens else None


def goes_on(session: Session) -> None:
    """Take back what looked like the end of the output, since the engine was asked to go on after it."""
    session.eos_ids = frozenset()
    session.request = replace(session.request, max_new_tokens=ENDLESS)


def finish_record(session: Session, now_s: float) -> RequestRecord:
    """Return the record of a request that has left the engine, cut where its output ends."""
    length, reason = end_of_output(session) or (session.produced, "length")
    record, excess = session.record, session.produced - length
    while excess:
        last = record.rounds[-1]
        cut = min(excess, last.committed)
        last.committed -= cut
        excess -= cut
        if not last.committed:
            record.rounds.pop()
    prompt = len(session.request.prompt_ids)
    record.finish(session.tokens[prompt : prompt + length], reason, now_s)
    return record
