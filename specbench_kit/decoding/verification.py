"""The target model's side of a round: one forward over the chosen nodes, then a rule of acceptance.

`walk` accepts drafted tokens that equal the target's own, `rules.py` has the rules for drawn ones, and `lossy.py` those
that let outputs differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Protocol, cast

import torch
from torch import Tensor

from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.lossy import LossyRule, lossy_verdict
from specbench_kit.decoding.masking import masked
from specbench_kit.decoding.rules import rule_for, walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.executors.pending import PendingTokens
from specbench_kit.models.runner import Append, refuse_nan, refuse_nan_in

NOT_DRAFTED = -1
"""A token that no node of a tree has."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's decision on one request's draft.

    `path` lists the accepted nodes, `bonus` is the target's own token after them.
    """

    draft: Draft
    submitted: list[int]
    path: list[int]
    bonus: int
    computed: int
    """The number of tokens that the target computed for this request, which is its share of the
    batch.
    """
    states: Tensor | None = None
    """Hidden states [tokens, layers x width] of the newly committed tokens up to the root and then
    of the accepted ones, from the layers that the drafter reads.
    """
    padded: Sequence[int] = ()
    """The `Padding` of its row in a batch of several."""
    candidates: Sequence[Sequence[int]] = ()
    """The target's most likely tokens, best first, after the root and after each submitted node, if
    they are read.
    """
    divergences: Sequence[float] = ()
    """The KL divergence, in nats, of the distribution that each submitted node was drafted from,
    from the target's there, if they are read.
    """
    sent_bytes: int = 0
    """Bytes of the drafts that were sent to a server since the last round."""
    stale_bytes: int = 0
    """Bytes of the drafts that were dropped unverified since the last round."""
    forbidden: int = 0
    """The number of submitted tokens that the request's grammar forbids."""
    forced_submitted: int = 0
    """The number of submitted tokens that the grammar leaves no choice in."""
    forced_accepted: int = 0
    """The number of accepted ones among them."""

    @property
    def tokens(self) -> list[int]:
        """The tokens that the round adds to the output, before an end is applied."""
        tokens = self.draft.tree.tokens
        return [tokens[node] for node in self.path] + [self.bonus]

    def before(self, forced: Sequence[int]) -> "Verdict":
        """Return the verdict by which the next root is looked for where `forced` tokens follow.

        The next root is the last of them, below which nothing was drafted.
        """
        return replace(self, bonus=NOT_DRAFTED) if forced else self

    def with_counts(self) -> "Verdict":
        """Return the verdict with its counts under the request's grammar; called before its tokens
        are committed.
        """
        if self.draft.session.grammar is None:
            return self
        return replace(
            self,
            forbidden=self.draft.forbidden(self.submitted),
            forced_submitted=self.draft.forced(self.submitted),
            forced_accepted=self.draft.forced(self.path),
        )

    def positions(self) -> tuple[list[int], list[int]]:
        """Return the submitted nodes' parents and the path as `RoundRecord` has them; both empty
        for a chain.
        """
        above = self.draft.tree.parents
        parents = [above[node] for node in self.submitted]
        if parents == [0, *self.submitted][:-1]:
            return [], []
        position = {0: 0} | {node: number for number, node in enumerate(self.submitted, start=1)}
        return [position[node] for node in parents], [position[node] for node in self.path]


PendingVerdicts = Callable[[], list[Verdict]]
"""Waits for the verdicts on what was sent, and returns them."""


class Verifier(Protocol):
    """A verifier as an engine sees it: a model, a server, or a recorded trace."""

    asynchronous: bool
    """True if it works beside this process, so that its verdicts may have to be waited for."""

    def admit(self, session: Session) -> None:
        """Reserve what a new request needs."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Start to verify the chosen nodes of every draft."""

    def commit(self, verdict: Verdict) -> None:
        """Commit the accepted nodes."""

    def release(self, session: Session) -> None:
        """Free what a finished request held."""


class RemoteVerifier(Verifier, Protocol):
    """A verifier behind a network link."""

    def answer_arrived(self) -> bool:
        """Return whether verdicts have arrived."""


class Target(Protocol):
    """The target model as verification sees it: a runner's slots and forwards, in whichever process
    it lives.
    """

    asynchronous: bool
    """True if the model is in another process."""
    takes_pending: bool
    """True if appended tokens may be pending."""
    states_apart: bool
    """True if a row may ask for the hidden states of more tokens than it asks logits of."""

    def acquire(self) -> int:
        """Return an empty slot."""

    def release(self, slot: int) -> None:
        """Free a slot."""

    def length(self, slot: int) -> int:
        """Return the number of committed tokens whose KV the slot holds."""

    def provisional(self, slot: int) -> int:
        """Return the number of appended tokens that are not yet committed."""

    def begin(self, rows: Sequence[Append], layers: Sequence[int] = ()) -> Callable[[], Forward]:
        """Append every row's tokens as provisional; the function returned waits for the forward's
        result.
        """

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Make a path of provisional nodes part of the prefix, and drop the others."""


class VerifiesAhead(Protocol):
    """A target that may begin to verify trees before the host knows them."""

    def verify_ahead(
        self,
        trees: Forward,
        lacking: Sequence[tuple[int, Sequence[int]]],
        layers: Sequence[int] = (),
    ) -> None:
        """Say that the next forward will probably verify trees; see `Runner.verify_ahead`."""


class ModelVerifier:
    """Verifies by batched forwards of the target.

    What a request's grammar forbids has no probability in the target's distributions, before any
    rule sees them. `layers` are those whose hidden states the drafter reads, and `candidates` is
    the number of the target's most likely tokens that the policy reads. A `lossy` rule takes the
    place of the lossless ones. With `divergences`, verdicts say how far the draft model's
    distributions lay from the target's.
    """

    def __init__(
        self,
        runner: Target,
        sampler: Sampler,
        layers: Sequence[int] = (),
        candidates: int = 0,
        lossy: LossyRule | None = None,
        *,
        divergences: bool = False,
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self._layers = layers
        self._candidates = candidates
        self._lossy = lossy
        self._divergences = divergences
        self.asynchronous = runner.asynchronous
        self._slots: dict[str, int] = {}

    def admit(self, session: Session) -> None:
        """Acquire a slot for a new request."""
        self._slots[session.request.id] = self._runner.acquire()

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        self._runner.release(self._slots.pop(session.request.id))

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Start one batched forward over the chosen nodes of all drafts."""
        rows = [
            appended_row(
                self._runner, self._slots[draft.request_id], draft, nodes, bool(self._layers)
            )
            for draft, nodes in zip(drafts, chosen, strict=True)
        ]
        forward = self._runner.begin(rows, self._layers)
        if self.asynchronous:
            return lambda: self._verdicts(drafts, chosen, rows, forward())
        # The model has worked already: the rules' time too is charged to the phase in which the
        # draft was sent.
        verdicts = self._verdicts(drafts, chosen, rows, forward())
        return lambda: verdicts

    def verify_ahead(self, target: VerifiesAhead, trees: Forward, drafts: Sequence[Draft]) -> None:
        """Have the target begin to verify the trees of all drafts, which still grow on a card."""
        lacking = [
            (slot, draft.session.tokens[self._runner.length(slot) :])
            for slot, draft in ((self._slots[draft.request_id], draft) for draft in drafts)
        ]
        if len(lacking) == len(self._slots):
            target.verify_ahead(trees, lacking, self._layers)

    def commit(self, verdict: Verdict) -> None:
        """Keep the KV of the tokens up to the root and of the accepted nodes."""
        commit_verdict(self._runner, self._slots[verdict.draft.request_id], verdict)

    def _verdicts(
        self,
        drafts: Sequence[Draft],
        chosen: Sequence[list[int]],
        rows: Sequence[Append],
        forward: Forward,
    ) -> list[Verdict]:
        forward = masked_by_grammars(forward, drafts, chosen, rows)
        verified = verified_rows(forward, rows, greedy=self._sampler.greedy)
        verdicts = [
            verdict_on(draft, nodes, row, self._sampler, self._layers, self._lossy).with_counts()
            for draft, nodes, row in zip(drafts, chosen, verified, strict=True)
        ]
        if self._divergences:
            verdicts = with_divergences(verdicts, verified, self._sampler)
        return (
            with_candidates(verdicts, rows, forward, self._candidates)
            if self._candidates
            else verdicts
        )


def masked_by_grammars(
    forward: Forward,
    drafts: Sequence[Draft],
    chosen: Sequence[Sequence[int]],
    rows: Sequence[Append],
) -> Forward:
    """Return the forward in which what a request's grammar forbids after the root or a chosen node
    of its draft has no probability.
    """
    if all(draft.session.grammar is None for draft in drafts):
        return forward
    return masked(
        forward,
        [
            [None] * (row.keep - 1 - len(nodes)) + draft.allowed_after((0, *nodes))
            for draft, nodes, row in zip(drafts, chosen, rows, strict=True)
        ],
    )


def with_candidates(
    verdicts: Sequence[Verdict], rows: Sequence[Append], forward: Forward, number: int
) -> list[Verdict]:
    """Return the verdicts with the target's `number` most likely tokens after each root and each
    submitted node.
    """
    tokens = iter(forward.top_tokens(number))
    kept = [list(islice(tokens, row.keep)) for row in rows]
    return [
        replace(verdict, candidates=after[-1 - len(verdict.submitted) :])
        for verdict, after in zip(verdicts, kept, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """One draft's row of a forward: its number, the tokens that it appended, and the likeliest
    token after each.

    Greedy decoding takes the likeliest tokens; `best` is empty where tokens are drawn.
    """

    forward: Forward
    number: int
    appended: int
    best: Sequence[int]

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """Return the logits after the root and each of the nodes, which are the last that the row
        appended.
        """
        return self.forward[self.number][-1 - len(nodes) :]

    @property
    def padding(self) -> Sequence[int]:
        """The `Padding` of the row in a batch of several rows; empty where there is none."""
        padding = self.forward.padding[self.number] if self.forward.padding else None
        return padding if padding is not None and padding.rows > 1 else ()


LEAST_PROBABILITY = 1e-10
"""Probabilities count as this at least, so that what top-k or top-p cuts off leaves a divergence
finite.
"""


def with_divergences(
    verdicts: Sequence[Verdict], rows: Sequence[VerifiedRow], sampler: Sampler
) -> list[Verdict]:
    """Return the verdicts with the KL divergence of the draft model's distribution from the target's
    at every submitted node.

    All nodes of a round are computed at once, since a card takes as long for each of them.
    """
    targets: list[Tensor] = []
    drafts: list[Tensor] = []
    for verdict, row in zip(verdicts, rows, strict=True):
        tree = verdict.draft.tree
        logits = row.logits(verdict.submitted)
        columns = {0: 0} | {node: column for column, node in enumerate(verdict.submitted, start=1)}
        for node in verdict.submitted:
            source, drafted = tree.source(node)
            targets.append(logits[columns[tree.parents[node]]])
            drafts.append(cast(FullDistributions, source).probabilities[drafted])
    if not targets:
        return list(verdicts)
    target = sampler.probabilities(torch.stack(targets)).clamp(min=LEAST_PROBABILITY)
    draft = torch.stack(drafts).to(target.device)
    surprise = draft.clamp(min=LEAST_PROBABILITY).log() - target.log()
    found = iter((draft * surprise).sum(-1).clamp(min=0.0).tolist())
    return [
        replace(verdict, divergences=list(islice(found, len(verdict.submitted))))
        for verdict in verdicts
    ]


def verified_rows(forward: Forward, rows: Sequence[Append], *, greedy: bool) -> list[VerifiedRow]:
    """Return what a forward says of each of its rows; `greedy` if one of them at least is decoded
    greedily.
    """
    likeliest: Sequence[Sequence[int]] = [()] * len(rows)
    if greedy:
        refuse_nan(forward)
        likeliest = forward.argmax()
    return [
        VerifiedRow(forward, number, len(row.tokens), best)
        for number, (row, best) in enumerate(zip(rows, likeliest, strict=True))
    ]


def verdict_on(
    draft: Draft,
    nodes: list[int],
    row: VerifiedRow,
    sampler: Sampler,
    layers: Sequence[int],
    lossy: LossyRule | None = None,
) -> Verdict:
    """Return the verdict on a draft's chosen nodes, by the rule for how its tokens were drafted.

    It carries the hidden states of `layers`, if there are any. A `lossy` rule takes the place of
    the rule for how the tokens were drafted.
    """
    if lossy is not None and nodes:
        target = sampler.probabilities(row.logits(nodes))
        refuse_nan_in(target)
        random = (
            None if sampler.greedy else draft.session.random.from_position(draft.session.produced)
        )
        path, bonus = lossy_verdict(lossy, draft.tree, nodes, target, random)
    elif sampler.greedy:
        path, bonus = walk(draft.tree, nodes, row.best[-1 - len(nodes) :].__getitem__)
    else:
        path, bonus = judge_sampled(sampler, draft, nodes, row.forward[row.number])
    states = committed_states(row.forward, row.number, layers, nodes, path) if layers else None
    return Verdict(draft, nodes, path, bonus, row.appended, states, row.padding)


def appended_row(
    target: Target, slot: int, draft: Draft, nodes: Sequence[int], with_states: bool
) -> Append:
    """Return the row of a forward that verifies the chosen nodes of a draft.

    It holds the committed tokens that are not in KV yet (the prompt in a request's first round,
    later the last token alone, which is the root) and behind them the nodes. Logits are needed for
    the root and the nodes; a drafter that reads hidden states needs those of all committed tokens.
    """
    tree = draft.tree
    pending = draft.session.tokens[target.length(slot) :]
    index = dict(zip((0, *nodes), count(len(pending) - 1), strict=False))
    parents = [*range(-1, len(pending) - 1), *[index[tree.parents[node]] for node in nodes]]
    keep = 1 + len(nodes)
    drafted = tree.tokens_of(nodes)
    tokens: Sequence[int]
    if target.takes_pending and isinstance(drafted, PendingTokens):
        tokens = PendingTokens([*pending, *drafted.parts])
    else:
        tokens = [*pending, *drafted]  # this waits for what is pending
    if with_states:
        return Append.with_states(target, slot, tokens, parents, keep)
    return Append(slot, tokens, parents, keep)


def judge_sampled(
    sampler: Sampler, draft: Draft, nodes: Sequence[int], logits: Tensor
) -> tuple[list[int], int]:
    """Return a draft's accepted nodes and bonus token under sampling, by the rule for how its
    tokens were drafted.

    `logits` [kept, vocabulary] are those of the draft's row.
    """
    target = sampler.probabilities(logits[-1 - len(nodes) :])
    refuse_nan_in(target)
    random = draft.session.random.from_position(draft.session.produced)
    return rule_for(draft.tree, nodes)(draft.tree, nodes, target, random)


def committed_states(
    forward: Forward, row: int, layers: Sequence[int], nodes: Sequence[int], path: Sequence[int]
) -> Tensor:
    """Return the hidden states [tokens, layers x width] of a row's newly committed tokens and
    accepted nodes.
    """
    states = forward.states(row, layers)
    rows = list(_committed_rows(nodes, path, root=len(states) - len(nodes) - 1))
    first = rows[0]
    end = rows[-1] + 1
    # Neighbours are taken as they lie: for any others torch wakes its threads, which then wait
    # beside the executor's.
    return states[first:end] if len(rows) == end - first else states[rows]


def commit_verdict(target: Target, slot: int, verdict: Verdict) -> None:
    """Keep the KV of a slot's tokens up to the root and of the accepted nodes."""
    root = target.provisional(slot) - len(verdict.submitted) - 1
    target.commit(slot, _committed_rows(verdict.submitted, verdict.path, root))


def _committed_rows(submitted: Sequence[int], path: Sequence[int], root: int) -> list[int]:
    """Return the rows of a forward that are committed: all up to the root, and behind it the
    accepted nodes.
    """
    row = dict(zip(submitted, count(root + 1), strict=False))
    return [*range(root + 1), *map(row.__getitem__, path)]
