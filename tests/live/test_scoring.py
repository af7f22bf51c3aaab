"""Outputs of a server in half precision are judged by the scores that the server computes again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from live_server import CAPACITY, decode_remotely, generate_remotely, make_server, serving
from nightly import nightly_except
from tiny_models import GREEDY, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from benchmarks.faults import Fault, accept_second, swap_extra
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import Verdict, VerifiedRow
from specbench_kit.live.connection import ClientIdentity, Connection
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.scoring import score_frame
from specbench_kit.live.server import verifiers
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.wire import Status, Up
from specbench_kit.live.wire_verifier import ScoringJudge
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.losslessness import Losslessness, check_all, summarise_checks

TARGET = tiny_llama(vocab_size=256).to(torch.bfloat16)
DEVICE_MODEL = disturbed(TARGET, 0.03)
REQUESTS = make_requests(random_prompts([7 + 2 * number for number in range(4)], 256), 24)
SAMPLED = Sampler(0.8)
METHODS = ("fixed-k:k=8", "specedge:depth=3,budget=8,beams=4")
Records = Mapping[str, RequestRecord]


@contextmanager
def half_precision(**options: object) -> Iterator[tuple[VerificationService, Connection]]:
    service = make_server(target_model=TARGET, **options)  # type: ignore[arg-type]
    with serving(service) as (_, address):
        yield service, Connection(address, ClientIdentity("same", 256))


def decode(
    spec: str, connection: Connection, batch_size: int = 1, sampler: Sampler = GREEDY
) -> Records:
    models = {"draft": make_runner(DEVICE_MODEL, batch_size, CAPACITY)}
    return decode_remotely(
        parse_method(spec),
        connection,
        REQUESTS,
        sampler=sampler,
        batch_size=batch_size,
        models=models,
    )


def judged(
    records: Records, plain: Records, connection: Connection, sampler: Sampler = GREEDY
) -> tuple[list[Losslessness], ScoringJudge]:
    judge = ScoringJudge(connection, sampler, 0)
    names = sorted(records)
    return check_all(
        [records[name] for name in names], [plain[name] for name in names], judge
    ), judge


def verdicts(results: list[Losslessness]) -> list[str]:
    return [result.verdict for result in results]


@pytest.mark.parametrize("batch_size", nightly_except([3], [1, 3]))
def test_rounding_of_chains_and_trees_on_a_server_is_no_error(batch_size: int) -> None:
    all_verdicts: list[str] = []
    with half_precision() as (_, connection):
        plain = generate_remotely(connection, REQUESTS, batch_size=batch_size)
        for spec in METHODS:
            results, judge = judged(decode(spec, connection, batch_size), plain, connection)
            all_verdicts += verdicts(results)
            assert judge.cost.outputs == verdicts(results).count("tie")
            assert (judge.cost.forwards > 0) is (judge.cost.outputs > 0)
    assert set(all_verdicts) <= {"identical", "tie"}
    # How a server's batches are composed depends on time; alone, every forward is always the same.
    assert "tie" in all_verdicts or batch_size > 1


def test_rounding_of_drawn_tokens_on_a_server_is_no_error() -> None:
    all_verdicts: list[str] = []
    with half_precision() as (_, connection):
        plain = generate_remotely(connection, REQUESTS, sampler=SAMPLED)
        for spec in ("specedge:depth=3,budget=8,beams=4", "suffix"):
            results, _ = judged(
                decode(spec, connection, sampler=SAMPLED), plain, connection, SAMPLED
            )
            all_verdicts += verdicts(results)
    assert set(all_verdicts) == {"identical", "tie"}


@contextmanager
def planted(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the fault into every verification of a server."""
    right = verifiers.verdict_on

    def faulty(draft: Draft, nodes: list[int], row: VerifiedRow, *rule: object) -> Verdict:
        path, bonus = fault(draft.tree, nodes, row.logits(nodes).float())
        return replace(right(draft, nodes, row, *rule), path=path, bonus=bonus)

    with monkeypatch.context() as patch:
        patch.setattr(verifiers, "verdict_on", faulty)
        yield


@pytest.mark.parametrize("fault", nightly_except([accept_second], [accept_second, swap_extra]))
def test_a_planted_fault_in_the_servers_verification_is_an_error(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_verdicts: list[str] = []
    with half_precision() as (_, connection):
        plain = generate_remotely(connection, REQUESTS)
        for spec in METHODS[:2]:
            right = decode(spec, connection)
            with planted(fault, monkeypatch):
                faulty = decode(spec, connection)
            changed = {name for name in right if faulty[name].output_ids != right[name].output_ids}
            results, _ = judged(faulty, plain, connection)
            all_verdicts += [result.verdict for result in results if result.request_id in changed]
    assert len(all_verdicts) >= 3
    # A fault at one of the few true ties cannot be told from rounding.
    assert all_verdicts.count("error") >= 0.75 * len(all_verdicts)


def test_the_shapes_of_a_servers_batches_are_on_record() -> None:
    with half_precision() as (_, connection):
        plain = generate_remotely(connection, REQUESTS, batch_size=3)
        records = decode("fixed-k:k=4", connection, batch_size=3)
    for group in (plain, records):
        assert any(
            step.padded and step.padded[0] > 1
            for record in group.values()
            for step in record.rounds
        )


def test_without_evidence_a_difference_is_left_open() -> None:
    with half_precision(scores=False) as (_, connection):
        plain = decode("autoregressive", connection)
        assert connection.welcome.scored == 0
        altered = dict(plain)
        name = sorted(plain)[0]
        altered[name] = RequestRecord(
            name, "", plain[name].prompt_ids, [*plain[name].output_ids[:-1], 0]
        )
        results, _ = judged(altered, plain, connection)
    summary = summarise_checks(results)
    assert (summary.unjudged, summary.errors, summary.lossless) == (1, 0, None)
    assert "the server scores no outputs" in results[0].reason


def test_devices_are_served_while_an_output_is_scored() -> None:
    """A scoring that takes hundreds of forwards lets rounds pass between any two of them."""
    with half_precision() as (service, connection):
        plain = decode("autoregressive", connection)
        record = next(iter(plain.values()))
        changed = RequestRecord(
            record.request_id, "", record.prompt_ids, list(record.output_ids), rounds=record.rounds
        )
        changed.output_ids[-1] = (changed.output_ids[-1] + 1) % 256
        frame = score_frame("scored", changed, record, len(record.output_ids) - 1, GREEDY, 0)
        verified, scorer = [], service.handler.batch_runner.scorer
        deliver = service.handler.batch_runner.deliver

        def note(batch: list[object]) -> None:
            verified.append(len(scorer.waiting))
            deliver(batch)  # type: ignore[arg-type]

        service.handler.batch_runner.deliver = note  # type: ignore[assignment]
        connection.send(Up(score=frame))
        decode("fixed-k:k=4", connection)
    assert verified
    assert max(verified) == 1


def test_frames_that_cannot_be_scored_are_refused() -> None:
    with half_precision() as (_, connection):
        plain = decode("autoregressive", connection)
        record = next(iter(plain.values()))
        good = score_frame("a", record, record, 3, GREEDY, 0)
        good.expected = (record.output_ids[3] + 1) % 256

        def refusal(**changes: object) -> Status:
            frame = messages.Score()
            frame.CopyFrom(good)
            for name, value in changes.items():
                frame.ClearField(name)  # type: ignore[arg-type]
                frame.MergeFrom(messages.Score(**{name: value}))  # type: ignore[arg-type]
            connection.send(Up(score=frame))
            while True:
                _, answer = connection.receive(60)
                if answer.WhichOneof("kind") in ("refused", "scored"):
                    return Status(answer.refused.status)

        assert refusal() is Status.OK
        assert refusal(expected=256) is Status.TOKEN_OUTSIDE_VOCABULARY
        assert refusal(prompt=[]) is Status.EMPTY_PROMPT
        assert refusal(output=list(range(CAPACITY))) is Status.CONTEXT_FULL
        assert refusal(position=24) is Status.BROKEN_TREE
        assert refusal(expected=record.output_ids[3]) is Status.BROKEN_TREE
        assert refusal(rounds=[messages.RoundShape(committed=24)]) is Status.BROKEN_TREE
        assert (
            refusal(rounds=[messages.RoundShape(submitted=500, accepted=23, committed=24)])
            is Status.TOO_MANY_NODES
        )
        tree = messages.RoundShape(
            submitted=39, accepted=23, committed=24, parents=[39] * 39, path=range(1, 40)
        )
        assert refusal(rounds=[tree]) is Status.BROKEN_TREE
        # A shape that no batch here can have had is passed over.
        assert refusal(plain=[messages.RoundShape(padded=[1 << 31, 0, 1, 0, 1 << 31])]) is Status.OK
