"""A device whose server has gone on without it: the answer REBASE, and what the device makes of it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from live_server import CAPACITY, DRAFT, TARGET, VOCABULARY, decode_here, run
from tiny_models import GREEDY, make_requests, make_runner, outputs, random_prompts, tiny_llama
from transformers import PreTrainedModel

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.live.assembly import remote_loop
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import Down, Status, Up
from specbench_kit.live.wire_verifier import WireVerifier
from specbench_kit.methods.spec import parse_method

REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 24)
PLAIN = outputs(decode_here(parse_method("autoregressive"), REQUESTS))
STRANGER = tiny_llama(7)
"""A model that never drafts what the target says."""


@dataclass
class AheadServer:
    """Answers drafts by the outputs of plain decoding; the n-th round of a request is told that the server is ahead.

    `leads` are the numbers of tokens that the server has committed beyond the device's, by round; 0 is a verdict.
    """

    leads: Sequence[int]
    welcome: messages.Welcome = field(default_factory=messages.Welcome)
    drafts: list[messages.Draft] = field(default_factory=list)
    _prompts: dict[str, int] = field(default_factory=dict)
    _answers: deque[Down] = field(default_factory=deque)

    answer_arrived = True

    def send(self, frame: Up) -> None:
        if frame.WhichOneof("kind") == "open":
            self._prompts[frame.open.session] = len(frame.open.prompt)
        elif frame.WhichOneof("kind") == "draft":
            self.drafts.append(frame.draft)
            self._answers.append(Down(verdict=self._verdict(frame.draft)))

    def receive(self) -> tuple[float, Down]:
        return monotonic_s(), self._answers.popleft()

    def _verdict(self, draft: messages.Draft) -> messages.Verdict:
        answer = PLAIN[draft.session.split("/")[-1]][draft.base - self._prompts[draft.session] :]
        lead = self.leads[draft.round - 1] if draft.round <= len(self.leads) else 0
        named = {"session": draft.session, "round": draft.round}
        if lead:
            return messages.Verdict(**named, status=Status.REBASE, suffix=answer[:lead])
        parents, path = list(draft.parents) or list(range(len(draft.tokens))), [0]
        for token in answer:
            below = zip(parents, draft.tokens, strict=True)
            nodes = [node for node, edge in enumerate(below, 1) if edge == (path[-1], token)]
            if not nodes:
                break
            path += nodes[:1]
        bonus = answer[len(path) - 1] if len(path) <= len(answer) else 0
        return messages.Verdict(**named, path=path[1:], bonus=bonus, computed=1 + len(draft.tokens))


def decode_behind(
    server: AheadServer, drafter: PreTrainedModel, spec: str, batch_size: int = 1
) -> dict[str, RequestRecord]:
    """Return the records of the requests of a device with this draft model."""
    engine = remote_loop(
        parse_method(spec),
        {"draft": make_runner(drafter, batch_size, CAPACITY)},
        lambda clock: WireVerifier(server, GREEDY, 0, clock),  # type: ignore[arg-type]
        DecodingSetup(batch_size=batch_size, capacity=CAPACITY),
    )
    return run(engine, REQUESTS)


@pytest.mark.parametrize(
    ("drafter", "lead", "accepted", "committed"),
    [
        pytest.param(TARGET, 4, [3], [4], id="equals its draft"),
        pytest.param(TARGET, 2, [1], [2], id="ends within its draft"),
        pytest.param(TARGET, 1, [0], [1], id="is one token"),
        pytest.param(STRANGER, 3, [0, 0, 0], [1, 1, 1], id="leaves its draft at once"),
        pytest.param(TARGET, 5, [4], [5], id="is its draft and the bonus token"),
        pytest.param(TARGET, 13, [4, 4, 2], [5, 5, 3], id="outruns its draft"),
    ],
)
def test_the_output_is_plain_decodings_whatever_the_server_committed_alone(
    drafter: PreTrainedModel, lead: int, accepted: list[int], committed: list[int]
) -> None:
    """Drafts have four tokens, and the first one is answered with so many tokens that the server has committed."""
    server = AheadServer([lead])
    records = decode_behind(server, drafter, "fixed-k:k=4")
    assert outputs(records) == PLAIN
    for record in records.values():
        rounds = record.rounds[: len(accepted)]
        assert [step.accepted for step in rounds] == accepted
        assert [step.committed for step in rounds] == committed
    # Rounds that the tokens at hand can answer are not sent.
    rounds_in_all = sum(len(record.rounds) for record in records.values())
    assert len(server.drafts) == rounds_in_all - len(REQUESTS) * (len(accepted) - 1)
    first_bases = [draft.base for draft in server.drafts if draft.round == 2]
    assert first_bases == [len(request.prompt_ids) + lead for request in REQUESTS]


@pytest.mark.parametrize("spec", ["fixed-k:k=4", "specedge:depth=3,budget=8,beams=4", "opt-tree"])
@pytest.mark.parametrize("leads", [(0, 3, 0, 7), (6, 6), (1, 2, 3, 4, 5)])
def test_chains_and_trees_leave_a_suffix_where_the_target_does(
    spec: str, leads: Sequence[int]
) -> None:
    """The draft model agrees with the target now and then, and the requests of a batch take their own suffixes."""
    for batch_size in (1, 2):
        assert outputs(decode_behind(AheadServer(leads), DRAFT, spec, batch_size)) == PLAIN
