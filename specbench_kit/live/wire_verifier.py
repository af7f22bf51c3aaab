"""The target on a `skit serve`: drafts go out as frames and verdicts come back, or the server
decodes by itself.

Where an output differs from plain decoding, the server is asked to score it again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from threading import Event

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock, monotonic_s
from specbench_kit.decoding.constraint import GrammarSpec, spec_of
from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.scoring import read_evidence, sampling_message, score_frame
from specbench_kit.live.states import from_bytes
from specbench_kit.live.streaming import StreamedRound
from specbench_kit.live.wire import RETRYABLE, Down, Status, Up
from specbench_kit.metrics.evidence import NoEvidence
from specbench_kit.metrics.losslessness import Losslessness, ScoringCost

MAX_TRIES = 200
"""How often a round is sent, or a generation begun, at a server that refuses it for the time
being.
"""
SCORING_TIMEOUT_S = 1800.0
"""How long the scoring of one output may take: some four forwards per token, on the slowest of
servers.
"""
MAX_RECONNECTIONS = 3
FORCED_DIFFER = (
    "the server's grammar forces other tokens than this device's: install the same version of llguidance on both, or "
    "give --no-skip-forced"
)


def open_frame(
    session: Session,
    name: str,
    sampler: Sampler,
    seed: int,
    layers: Sequence[int] = (),
    silence_s: float = 0.0,
    ahead: int = 0,
    heard: Sequence[int] = (),
) -> messages.Open:
    """Return the frame that opens a request's session under a name at the server.

    `heard` are tokens that the server has committed behind those of the session. Its verdicts bring the hidden states
    of `layers`. Without these, the server goes on by itself after `silence_s` without a draft; 0 never. With `ahead`,
    up to so many drafts are sent before their verdicts. The frame holds the whole text of the request's grammar.
    """
    request = session.request
    prompt = request.prompt_ids
    sampling = sampling_message(sampler, seed, request.id)
    output = [*session.tokens[len(prompt) :], *heard]
    frame = messages.Open(
        session=name, prompt=prompt, output=output, sampling=sampling, layers=layers, ahead=ahead
    )
    waits = not ahead and (layers or not silence_s)
    if not waits:
        frame.silence_ms = round(silence_s * 1e3)
    if not waits or request.constraint is not None:
        frame.max_tokens = request.max_new_tokens
        frame.ends.extend(sorted(session.eos_ids))
    if request.constraint is not None:
        frame.grammar = request.constraint.spec.spec
        frame.skip_forced = session.skip_forced
    return frame


def require_masking(connection: Connection) -> None:
    """Raise SkitError for a server that masks by no grammar: one of an earlier version would pass
    over a field that it does not know.
    """
    if not connection.welcome.grammar_bytes:
        raise SkitError(
            f"--constraint: {connection.address} is a skit serve that masks by no grammar: install this version of the "
            "kit with its extra `constrained` there and start it again, or leave out --constraint"
        )


def require_grammar(connection: Connection, grammar: GrammarSpec | None) -> None:
    """Raise SkitError unless a server masks by a grammar of this size, if there is one."""
    if grammar is None:
        return
    require_masking(connection)
    most = connection.welcome.grammar_bytes
    if (size := len(grammar.spec.encode())) > most:
        raise SkitError(
            f"--constraint: {connection.address} takes grammars of at most {most} bytes, and this one has {size}: "
            "make it smaller"
        )


def try_grammar(connection: Connection, grammar: GrammarSpec) -> str:
    """Open a session under a grammar and close it again; return why the server refused it, empty
    if it did not.
    """
    name = token_hex(8)
    frame = messages.Open(session=name, prompt=[0], max_tokens=1, grammar=grammar.spec)
    connection.send(Up(open=frame))
    refused = ""
    while True:
        _, answer = connection.receive()
        kind = answer.WhichOneof("kind")
        if kind == "refused" and answer.refused.session == name:
            refused = f"{Status(answer.refused.status).name}: {answer.refused.reason}"
            break
        if kind == "opened" and answer.opened.session == name:
            break
    connection.send(Up(close=messages.Close(session=name)))
    return refused


@dataclass(slots=True)
class _SentRound:
    """A draft that was sent, and its verdict once it has arrived."""

    draft: Draft
    nodes: list[int]
    frame: Up
    sent_s: float
    refusals: int = 0
    verdict: Verdict | None = None
    arrived_s: float = 0.0
    answer: messages.Verdict = field(default_factory=messages.Verdict)


@dataclass(slots=True)
class _OpenSession:
    """A session with its name at the server and the number of its latest round.

    The device has the hidden states of its first `states` tokens. `ahead` are tokens that the
    server has committed and the device not yet, after the device's own.
    """

    session: Session
    name: str
    round: int = 0
    states: int = 0
    ahead: list[int] = field(default_factory=list)


@dataclass
class WireVerifier:
    """Verifies over a connection, which several verifiers may use in turn.

    A round whose answer was lost is sent again: the server recognises it by its number and verifies
    it only once. Verdicts bring the target's hidden states of `layers`. If this device sends
    nothing for `silence_s`, the server goes on by itself; the tokens that it has committed by then
    are accepted here, without another round trip.
    """

    connection: Connection
    sampler: Sampler
    seed: int
    clock: MeasuringClock
    layers: Sequence[int] = ()
    silence_s: float = 0.0
    asynchronous: bool = True
    _sessions: dict[str, _OpenSession] = field(default_factory=dict)
    """Sessions by request id."""
    _nonce: str = field(default_factory=lambda: token_hex(8))
    """Keeps the names of sessions apart from those of other devices."""
    _opened: int = 0
    _all_known: bool = False
    """True if the latest drafts needed no answer, since the server was ahead."""

    def admit(self, session: Session) -> None:
        """Open a session for a new request."""
        self._opened += 1
        name = f"{self._nonce}/{self._opened}/{session.request.id}"
        opened = self._sessions[session.request.id] = _OpenSession(session, name)
        self._open(opened)

    def release(self, session: Session) -> None:
        """Close the session of a finished request."""
        opened = self._sessions.pop(session.request.id)
        self.connection.send(Up(close=messages.Close(session=opened.name)))

    def commit(self, verdict: Verdict) -> None:
        """Do nothing: the server commits together with its verdict."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Send the chosen nodes of every draft; the function returned waits for all verdicts."""
        began_s = monotonic_s()
        rounds = {}
        for draft, nodes in zip(drafts, chosen, strict=True):
            opened = self._sessions[draft.request_id]
            if opened.ahead:
                verdict = catch_up(draft, nodes, opened.ahead)
                rounds[opened.name] = _SentRound(draft, nodes, Up(), began_s, verdict=verdict)
                continue
            opened.round += 1
            tree = draft.tree
            positions = {0: 0} | {node: position for position, node in enumerate(nodes, 1)}
            parents = [positions[tree.parents[node]] for node in nodes]
            message = messages.Draft(
                session=opened.name,
                round=opened.round,
                base=len(draft.session.tokens),
                tokens=[tree.tokens[node] for node in nodes],
                parents=[] if parents == list(range(len(nodes))) else parents,  # a chain needs none
                states=opened.states,
            )
            if tree.sampled:
                add_distributions(message, tree, nodes, self.connection.welcome.limits.candidates)
            frame = Up(draft=message)
            self.connection.send(frame)
            rounds[opened.name] = _SentRound(draft, nodes, frame, began_s)
        self._all_known = all(sent.verdict is not None for sent in rounds.values())
        sending_s = monotonic_s() - began_s
        return lambda: self._receive(rounds, sending_s)

    def answer_arrived(self) -> bool:
        """Return True if an answer has arrived."""
        return self._all_known or self.connection.answer_arrived

    def _receive(self, rounds: dict[str, _SentRound], sending_s: float) -> list[Verdict]:
        """Wait for the verdicts on rounds, by session; reconnect and send them again if the
        connection is lost.
        """
        began_s = monotonic_s()
        while waiting := [sent for sent in rounds.values() if sent.verdict is None]:
            try:
                arrived_s, frame = self.connection.receive()
            except ConnectionLostError:
                self.connection.reconnect()
                for sent in waiting:
                    self.connection.send(sent.frame)
                continue
            self._take_answer(rounds, arrived_s, frame)
        # The engine charges the whole wait to the phase "verify". The round that came last decided
        # how long it was: the server reports its queue and its verification, and the remaining time
        # is the link's.
        last = max(rounds.values(), key=lambda sent: sent.arrived_s)
        queue_s = last.answer.queue_us / 1e6
        verify_s = last.answer.verify_us / 1e6
        link_s = max(0.0, last.arrived_s - last.sent_s - queue_s - verify_s)
        charged_s = sending_s + monotonic_s() - began_s
        self.clock.split(
            "verify", verify_s, charged_s, [("link", link_s, 2), ("queue", queue_s, 1)]
        )
        verdicts = (sent.verdict for sent in rounds.values())
        return [verdict.with_counts() for verdict in verdicts if verdict is not None]

    def _take_answer(self, rounds: dict[str, _SentRound], arrived_s: float, frame: Down) -> None:
        """Note a verdict, or send a refused round again; answers to other rounds are ignored."""
        kind = frame.WhichOneof("kind")
        if kind == "verdict":
            answer = frame.verdict
            sent = rounds.get(answer.session)
            if sent is not None and sent.verdict is None and answer.round == sent.frame.draft.round:
                verdict = _read_verdict(sent, answer, self._sessions[sent.draft.request_id])
                sent.verdict = self._with_states(verdict, answer.states) if self.layers else verdict
                sent.arrived_s = arrived_s
                sent.answer = answer
        elif kind == "refused":
            sent = rounds.get(frame.refused.session)
            if sent is not None and sent.verdict is None:
                self._retry(sent, frame.refused)

    def _retry(self, sent: _SentRound, refused: messages.Refused) -> None:
        """Send a refused round again; raise SkitError if the server would refuse it again."""
        status = Status(refused.status)
        sent.refusals += 1
        if status is Status.UNKNOWN_SESSION:
            # The server was started again, or dropped the session while this device was away.
            self._open(self._sessions[sent.draft.request_id])
        elif status not in RETRYABLE or sent.refusals > MAX_TRIES:
            raise SkitError(f"the server refused a draft: {status.name}: {refused.reason}")
        Event().wait(refused.retry_ms / 1000)
        self.connection.send(sent.frame)

    def _open(self, opened: _OpenSession) -> None:
        """Open a session, with the output that it has if the server forgot it."""
        # Also after a reconnection: another server may have taken over.
        require_grammar(self.connection, spec_of(opened.session.request.constraint))
        frame = open_frame(
            opened.session, opened.name, self.sampler, self.seed, self.layers, self.silence_s
        )
        self.connection.send(Up(open=frame))

    def _with_states(self, verdict: Verdict, content: bytes) -> Verdict:
        """Return the verdict with the hidden states that came with it."""
        opened = self._sessions[verdict.draft.request_id]
        # Those of all committed tokens that the device lacks, the last one before the draft
        # included, and of the accepted ones; the bonus token has none yet.
        tokens = verdict.draft.context_length - opened.states + len(verdict.path)
        opened.states += tokens
        return replace(verdict, states=from_bytes(content, tokens))


def _read_verdict(sent: _SentRound, answer: messages.Verdict, opened: _OpenSession) -> Verdict:
    """Return the verdict of an answer, with accepted positions turned back into nodes of the
    draft.
    """
    if answer.status == Status.REBASE:
        # The server is ahead of this device, and sends the tokens that it has committed since.
        opened.ahead = list(answer.suffix)
        return catch_up(sent.draft, sent.nodes, opened.ahead)
    if any(not 0 < position <= len(sent.nodes) for position in answer.path):
        raise SkitError("the server accepted tokens that were not sent: it is broken")
    path = [sent.nodes[position - 1] for position in answer.path]
    verdict = Verdict(
        sent.draft,
        sent.nodes,
        path,
        answer.bonus,
        max(1, answer.computed),
        padded=list(answer.padded),
        sent_bytes=sent.frame.ByteSize(),
    )
    # Both ends find the forced tokens by themselves, and the texts stay one only if they agree.
    if answer.forced != len(sent.draft.session.skipped_after(verdict.tokens)):
        raise SkitError(FORCED_DIFFER)
    return verdict


def catch_up(draft: Draft, nodes: list[int], ahead: list[int]) -> Verdict:
    """Return the verdict by tokens that the server has committed, and take those of the round out
    of `ahead`.

    The round takes those that its draft has, one more as its bonus token, and those that are forced
    behind it; the next rounds take what remains.
    """
    tokens = iter(ahead[:-1])
    path, _ = walk(draft.tree, nodes, lambda _: next(tokens, -1))
    verdict = Verdict(draft, nodes, path, ahead[len(path)], 1)
    forced = draft.session.skipped_after(verdict.tokens)
    taken = len(path) + 1 + len(forced)
    if ahead[len(path) + 1 : taken] != forced:
        raise SkitError(FORCED_DIFFER)
    del ahead[:taken]
    return verdict


def add_distributions(
    frame: messages.Draft, tree: TokenTree, nodes: Iterable[int], max_entries: int
) -> None:
    """Add the entries above zero of the distributions that the drafted tokens were sampled from."""
    for node in nodes:
        source, row = tree.source(node)
        assert isinstance(source, FullDistributions)
        probabilities = source.probabilities[row]
        tokens = probabilities.nonzero()[:, 0]
        if len(tokens) > max_entries:
            raise SkitError(
                f"a drafted token's distribution has {len(tokens)} entries and the server takes {max_entries}: "
                f"draft from the most probable alone, with --draft-top-n {max_entries} or less"
            )
        frame.counts.append(len(tokens))
        frame.ids.extend(tokens.tolist())
        frame.probabilities.extend(probabilities[tokens].tolist())


@dataclass(slots=True)
class _Generation:
    """A request's session at the server, and the number of the latest frame that asked for its
    response.
    """

    session: Session
    name: str
    round: int = 0
    refusals: int = 0


@dataclass
class WireStream:
    """Asks a `skit serve` to decode by itself; a response whose stream is lost goes on where it
    was.

    The server drafts too if it is given a `method`, which has to be one of those that it offers.
    """

    connection: Connection
    sampler: Sampler
    seed: int
    method: str = ""
    _generations: dict[str, _Generation] = field(default_factory=dict)
    """Generations by the name of their session."""
    _names: dict[str, str] = field(default_factory=dict)
    """Names of sessions by request."""
    _nonce: str = field(default_factory=lambda: token_hex(8))
    """Keeps the names of sessions apart from those of other devices."""
    _begun: int = 0

    def __post_init__(self) -> None:
        if not self.connection.welcome.generates:
            raise SkitError(
                f"the server {self.connection.address} cannot decode by itself, which the baseline needs: leave the "
                "baseline out with --no-baseline"
            )

    def begin(self, session: Session) -> None:
        """Open a session for a new request, and ask for its response."""
        self._begun += 1
        name = f"{self._nonce}/{self._begun}/{session.request.id}"
        self._names[session.request.id] = name
        generation = self._generations[name] = _Generation(session, name)
        self._open(generation)
        self._ask(generation)

    def receive(self) -> Sequence[StreamedRound]:
        """Wait for tokens of any request; reconnect and ask for the rest if the connection is
        lost.
        """
        while True:
            try:
                arrived_s, frame = self.connection.receive()
            except ConnectionLostError:
                self.connection.reconnect()
                for generation in self._generations.values():
                    self._ask(generation)
                continue
            kind = frame.WhichOneof("kind")
            if kind == "generated" and (rounds := self._read(frame.generated, arrived_s)):
                return rounds
            if (
                kind == "refused"
                and (refused := self._generations.get(frame.refused.session)) is not None
            ):
                self._retry(refused, frame.refused)

    def end(self, session: Session) -> None:
        """Close the session of a finished request."""
        name = self._names.pop(session.request.id)
        del self._generations[name]
        self.connection.send(Up(close=messages.Close(session=name)))

    def _read(self, frame: messages.Generated, arrived_s: float) -> Sequence[StreamedRound]:
        """Return the tokens of a frame; none if it belongs to an earlier attempt or repeats what is
        here.
        """
        generation = self._generations.get(frame.session)
        if (
            generation is None
            or frame.round != generation.round
            or frame.base != len(generation.session.tokens)
        ):
            return ()
        name = generation.session.request.id
        if frame.status == Status.REBASE:
            # What was committed while the connection was lost: nobody knows any more in which
            # rounds.
            return [StreamedRound(name, [token], arrived_s) for token in frame.tokens]
        streamed = StreamedRound(
            name,
            list(frame.tokens),
            arrived_s,
            drafted=frame.drafted,
            submitted=frame.submitted,
            accepted=frame.accepted,
            computed=frame.computed,
            padded=list(frame.padded),
            forced=frame.forced,
            forbidden=frame.forbidden,
            forced_submitted=frame.forced_submitted,
            forced_accepted=frame.forced_accepted,
            queue_s=frame.queue_us / 1e6,
            draft_s=frame.draft_us / 1e6,
            # A request's part of the batch, so that the sum over requests is the time in which the
            # server was busy.
            verify_s=frame.verify_us / 1e6 / max(1, frame.batch_size),
        )
        return [streamed] if frame.tokens else ()

    def _retry(self, generation: _Generation, refused: messages.Refused) -> None:
        """Ask again after a refusal; raise SkitError if the server would refuse again."""
        if refused.round not in (0, generation.round):
            return
        status = Status(refused.status)
        generation.refusals += 1
        if status is Status.UNKNOWN_SESSION:
            self._open(generation)
        elif status not in RETRYABLE or generation.refusals > MAX_TRIES:
            raise SkitError(f"the server refused to decode: {status.name}: {refused.reason}")
        Event().wait(refused.retry_ms / 1000)
        self._ask(generation)

    def _open(self, generation: _Generation) -> None:
        require_grammar(self.connection, spec_of(generation.session.request.constraint))
        frame = open_frame(generation.session, generation.name, self.sampler, self.seed)
        self.connection.send(Up(open=frame))

    def _ask(self, generation: _Generation) -> None:
        """Ask for the response from the last token that is here on."""
        session = generation.session
        generation.round += 1
        frame = messages.Generate(
            session=generation.name,
            round=generation.round,
            base=len(session.tokens),
            max_tokens=session.request.max_new_tokens - session.produced,
            ends=sorted(session.eos_ids),
            method=self.method,
        )
        self.connection.send(Up(generate=frame))


GrammarOf = Callable[[RequestRecord], GrammarSpec | None]


def unconstrained(_: RequestRecord) -> None:
    """Return None: the output of no record followed a grammar."""


class _NotScoredError(Exception):
    """Says why an output was not scored."""


@dataclass
class ScoringJudge:
    """Has a `skit serve` score every differing output again, in the shapes of forwards that
    produced it.
    """

    connection: Connection
    sampler: Sampler
    seed: int
    grammar_of: GrammarOf = unconstrained
    """Returns the grammar that the output of a record followed."""
    cost: ScoringCost = field(default_factory=ScoringCost)
    _gone: str = ""
    """Why no further output is sent, once the server has stayed away."""

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return a tie or an error by the server's evidence; without any, `unjudged`."""
        try:
            frame = self._score(record, baseline, position)
        except _NotScoredError as reason:
            return NoEvidence(self.connection.welcome.bitwise, str(reason)).judge(
                record, baseline, position
            )
        self.cost.outputs += 1
        self.cost.forwards += frame.forwards
        self.cost.seconds += frame.score_us / 1e6
        # The batches of a server are on record, but not when a session lost its KV and was computed
        # anew.
        return read_evidence(frame).verdict(record, exact=False)

    def _score(
        self, record: RequestRecord, baseline: RequestRecord, position: int
    ) -> messages.Scored:
        """Return the server's answer; raise _NotScoredError if there is none."""
        welcome = self.connection.welcome
        if self._gone:
            raise _NotScoredError(self._gone)
        if not welcome.scored:
            raise _NotScoredError("the server scores no outputs")
        if len(record.output_ids) > welcome.scored:
            raise _NotScoredError(f"the server scores outputs of at most {welcome.scored} tokens")
        if any(step.steps for step in record.rounds):
            raise _NotScoredError("the rounds of a pipeline are scored in one process alone")
        score = score_frame(token_hex(8), record, baseline, position, self.sampler, self.seed)
        if (grammar := self.grammar_of(record)) is not None:
            score.grammar = grammar.spec
        frame = Up(score=score)
        for _ in range(1 + MAX_RECONNECTIONS):
            try:
                return self._ask(frame)
            except ConnectionLostError:
                try:
                    self.connection.reconnect()
                except SkitError as error:
                    self._gone = str(error)
                    raise _NotScoredError(self._gone) from error
        raise _NotScoredError("the connection was lost while the server scored the output")

    def _ask(self, frame: Up) -> messages.Scored:
        """Send the frame until the server takes it, and wait for the answer."""
        until_s = monotonic_s() + SCORING_TIMEOUT_S
        while monotonic_s() < until_s:
            self.connection.send(frame)
            refused = None
            while refused is None:
                _, answer = self.connection.receive(SCORING_TIMEOUT_S)
                kind = answer.WhichOneof("kind")
                if kind == "scored" and answer.scored.session == frame.score.session:
                    return answer.scored
                if kind == "refused" and answer.refused.session == frame.score.session:
                    refused = answer.refused
            status = Status(refused.status)
            if status not in RETRYABLE:
                raise _NotScoredError(
                    f"the server did not score the output: {status.name}: {refused.reason}"
                )
            Event().wait(refused.retry_ms / 1000)
        raise _NotScoredError("the server had no time to score the output")
