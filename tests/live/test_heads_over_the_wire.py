"""A feature head on the device drafts from the hidden states that verdicts bring, as with the target beside it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from command_line import TinyPair, error_line, read_object, read_rows, skit_here, write_rows
from live_server import CALLER, CAPACITY, TARGET, VOCABULARY, decode_here, decode_remotely, serving
from test_sessions_and_refusals import ANSWER, PROMPT, ask, begin, draft
from tiny_heads import put_beside, trained, untrained
from tiny_models import (
    make_requests,
    make_runner,
    outputs,
    plain_greedy,
    plain_logits,
    random_prompts,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.live.connection import Connection
from specbench_kit.live.server.run import make_service
from specbench_kit.live.server.settings import ServeSettings
from specbench_kit.live.states import from_bytes, to_bytes
from specbench_kit.live.wire import Down, Status
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.pipeline import summarise_states
from specbench_kit.models.drafts.reduced import new_draft, save_draft
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.heads.files import save_head
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs.document import HiddenStates
from specbench_kit.studies.training.head_training import new_medusa

PROMPTS = random_prompts([5, 9, 17], VOCABULARY)
REQUESTS = make_requests(PROMPTS, 14)
EAGLE = parse_method("eagle:k=3")
TREES = parse_method("eagle2-tree:total=6,depth=3,top_k=3,drafter=head")
LAYERS = (0, 1, 2)
BYTES_PER_TOKEN = 2 * len(LAYERS) * TARGET.config.hidden_size


@pytest.fixture(scope="module")
def head() -> HeadModel:
    return trained(TARGET, PROMPTS, [plain_greedy(TARGET, prompt, 14)[0] for prompt in PROMPTS])


def beside(head: HeadModel, slots: int = 3) -> Mapping[str, Runner]:
    """Return the models of a device that has nothing but the head."""
    return {"head:auto": Runner(make_executor(head, slots, CAPACITY, VOCABULARY))}


def accepted(records: Mapping[str, RequestRecord]) -> dict[str, list[int]]:
    return {name: [round_.accepted for round_ in record.rounds] for name, record in records.items()}


class CountingConnection(Connection):
    """A connection that counts the bytes of hidden states."""

    states = 0

    def poll(self, timeout_s: float) -> tuple[float, Down] | None:
        answer = super().poll(timeout_s)
        self.states += len(answer[1].verdict.states) if answer else 0
        return answer


@pytest.mark.parametrize("method", [EAGLE, TREES], ids=["chains", "trees"])
def test_the_output_is_that_with_the_target_beside_the_head(method, head: HeadModel) -> None:
    target = make_runner(TARGET, 3, CAPACITY)
    put_beside(target, head)
    local = decode_here(method, REQUESTS)
    with serving() as (_, address):
        connection = CountingConnection(address, CALLER)
        remote = decode_remotely(method, connection, REQUESTS, models=beside(head), batch_size=2)
    assert outputs(remote) == outputs(local)
    assert sum(map(sum, accepted(remote).values())) > len(REQUESTS)
    states = HiddenStates(tuple(LAYERS), BYTES_PER_TOKEN)
    assert connection.states == summarise_states(list(remote.values()), states)["bytes"]


def test_medusa_heads_on_the_device_draft_blocks_as_beside_the_target() -> None:
    """The heads say what the target's own head says; the output does not depend on what they are right about."""
    heads = new_medusa(TARGET, torch.arange(VOCABULARY), 3).eval().requires_grad_(False)
    method = parse_method("fixed-k:k=3,drafter=medusa.size=3")
    local = decode_here(method, REQUESTS)
    models = {"head:auto:medusa": Runner(make_executor(heads, 3, CAPACITY, VOCABULARY))}
    with serving() as (_, address):
        remote = decode_remotely(
            method, Connection(address, CALLER), REQUESTS, models=models, batch_size=2
        )
    assert outputs(remote) == outputs(local)
    assert {step.drafted for record in remote.values() for step in record.rounds[1:-2]} == {3}


@pytest.fixture(scope="module")
def undisturbed(head: HeadModel) -> dict[str, RequestRecord]:
    with serving() as (_, address):
        return decode_remotely(
            EAGLE, Connection(address, CALLER), REQUESTS, models=beside(head), batch_size=3
        )


def test_states_of_a_session_that_lost_its_kv_come_from_where_the_device_lacks_them(
    head: HeadModel, undisturbed: dict[str, RequestRecord]
) -> None:
    with serving(slots=1) as (service, address):
        records = decode_remotely(
            EAGLE, Connection(address, CALLER), REQUESTS, models=beside(head), batch_size=3
        )
        assert service.handler.batch_runner.evictions > 3
    assert (outputs(records), accepted(records)) == (outputs(undisturbed), accepted(undisturbed))


def test_a_session_that_the_server_dropped_goes_on_with_the_states_that_the_device_has(
    head: HeadModel, undisturbed: dict[str, RequestRecord]
) -> None:
    with serving() as (service, address):
        answer, rounds = service.handler.answer, iter(range(100))

        def answer_and_forget(batch: list) -> None:
            answer(batch)
            if next(rounds) % 2:
                for verified in batch:
                    service.handler.sessions.drop(verified.pending.session)
                    service.handler.batch_runner.forget(verified.pending.session)

        service.handler.answer = answer_and_forget
        records = decode_remotely(
            EAGLE, Connection(address, CALLER), REQUESTS, models=beside(head), batch_size=3
        )
    assert (outputs(records), accepted(records)) == (outputs(undisturbed), accepted(undisturbed))


@pytest.fixture
def connection() -> Iterator[Connection]:
    with serving() as (_, address):
        yield Connection(address, CALLER)


def open_with(connection: Connection, layers: tuple[int, ...]) -> object:
    return ask(connection, open={"session": "s", "prompt": PROMPT, "layers": layers})


def test_a_verdict_brings_the_states_of_what_was_committed_and_only_if_they_were_asked_for(
    connection: Connection,
) -> None:
    begin(connection, "plain")
    assert draft(connection, "plain", 1, 6, ANSWER[:2]).states == b""
    open_with(connection, (1, 2))
    content = draft(connection, "s", 1, 6, [*ANSWER[:2], (ANSWER[2] + 1) % VOCABULARY]).states
    text = torch.tensor([[*PROMPT, *ANSWER[:2]]])
    hidden = TARGET(text, output_hidden_states=True).hidden_states
    assert torch.allclose(from_bytes(content, 8)[:, :32], hidden[1][0], rtol=0.01)
    states = draft(connection, "s", 2, 9, ANSWER[3:4], states=8).states
    assert len(states) == 2 * 2 * 2 * 32
    assert plain_logits(TARGET, PROMPT).argmax(-1)[-1] == ANSWER[0]


def test_a_device_that_lacks_states_which_are_in_kv_opens_its_session_again(
    connection: Connection,
) -> None:
    open_with(connection, (1,))
    draft(connection, "s", 1, 6, ANSWER[:2])
    lagging = draft(connection, "s", 2, 7, ANSWER[1:3], states=6)
    assert Status(lagging.status) is Status.UNKNOWN_SESSION
    ask(connection, open={"session": "s", "prompt": PROMPT, "output": ANSWER[:1], "layers": (1,)})
    answer = draft(connection, "s", 2, 7, ANSWER[1:3], states=6)
    assert (list(answer.path), len(answer.states)) == ([1, 2], 3 * 2 * 32)


@pytest.mark.parametrize("layers", [(3,), (0, 1, 2) * 3])
def test_layers_that_the_target_lacks_are_refused(
    layers: tuple[int, ...], connection: Connection
) -> None:
    assert Status(open_with(connection, layers).status) is Status.BROKEN_STATES


def test_states_beyond_the_text_are_refused(connection: Connection) -> None:
    open_with(connection, (1,))
    assert Status(draft(connection, "s", 1, 6, [], states=6).status) is Status.BROKEN_STATES
    assert draft(connection, "s", 1, 6, []).bonus == ANSWER[0]


def test_states_that_were_cut_short_are_an_error() -> None:
    content = to_bytes(torch.ones(3, 4))
    assert from_bytes(content, 3).shape == (3, 4)
    for broken in (b"", content[:-1], content[:-2]):
        with pytest.raises(SkitError, match="bytes of hidden states for 3 tokens: it is broken"):
            from_bytes(broken, 3)


@pytest.mark.slow
def test_a_benchmark_with_a_head_whose_target_is_on_a_server(
    tiny: TinyPair, tmp_path: Path
) -> None:
    pair = load_pair(str(tiny.target), None)
    runner = pair.target.runner(1, 64, pair.vocabulary)
    head = untrained(runner)
    head.owns_embedding = False
    save_head(head, tmp_path / "head")
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2))
    )
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        12,
        "--out",
        tmp_path / "out",
        "--draft",
        tiny.draft,
    )
    method = ("--method", f"eagle:head={tmp_path / 'head'},k=2")
    service, _ = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    with serving(service) as (_, address):
        command = ("bench", "--server", address, *method, *options)
        done = skit_here(*command, "--target", tiny.target)
        refused = skit_here(*command, "--target", tiny.draft)
    assert done.returncode == 0, done.stderr
    assert "uses the embeddings of its target, of which the server has another" in error_line(
        refused
    )
    (folder,) = (tmp_path / "out").iterdir()
    run, summary = (read_object(folder / f"{name}.json") for name in ("run", "summary"))
    assert summary["lossless"]["identical"] == 2
    assert summary["hidden_states"]["bytes"] > summary["hidden_states"]["prompt_bytes"] > 0
    assert run["hidden_states"]["layers"] == [0, 1, 1]
    assert "cross the link with the verdicts" in (folder / "report.md").read_text(encoding="utf-8")
    assert len(read_rows(folder / "requests.jsonl")) == 2


@pytest.mark.slow
def test_a_benchmark_with_a_draft_that_was_trained_for_the_target_on_a_server(
    tiny: TinyPair, tmp_path: Path
) -> None:
    target = load_pair(str(tiny.target), None).target.model
    save_draft(new_draft(target, (0, 1), torch.arange(256)), tmp_path / "draft")
    prompts = write_rows(tmp_path / "prompts.jsonl", {"id": "0", "prompt": "Say it."})
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        12,
        "--out",
        tmp_path / "out",
        "--target",
        tiny.target,
    )
    service, _ = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    with serving(service) as (_, address):
        method = ("--method", "fixed-k:k=2", "--draft", tmp_path / "draft")
        done = skit_here("bench", "--server", address, *method, *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert read_object(folder / "summary.json")["lossless"]["identical"] == 1
