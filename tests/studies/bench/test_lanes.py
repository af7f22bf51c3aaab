"""Methods take turns: each answers everything, in bounded bursts, and after its references."""

import re
from collections.abc import Mapping
from itertools import combinations

import pytest
from breaking_method import add_breaking_in
from tiny_models import disturbed, make_runner, tiny_llama
from transformers import PreTrainedTokenizerBase

from specbench_kit.core.errors import MethodError
from specbench_kit.datasets.base import Prompt
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner
from specbench_kit.studies.bench.lanes import MethodLane, run_in_turns, turn_order
from specbench_kit.studies.conversations import Conversation, ConversationScript

PROMPTS = [Prompt(f"q{i}", "test", ("How many?" + "?" * i,)) for i in range(5)]
DIALOGUES = [Prompt(name, "test", (f"{name}, who?", "And why?")) for name in "abc"]
TOKENS = 8

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(vocab_size=258)
    return make_runner(target, 6, 256), make_runner(disturbed(target, 0.02), 6, 256)


def make_lane(
    spec: str,
    runners: Runners,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[Prompt],
    *,
    batch_size: int = 1,
    references: Mapping[str, RequestRecord] | None = None,
    finished: Mapping[str, RequestRecord] | None = None,
) -> tuple[MethodLane, dict[str, RequestRecord]]:
    """A lane and the place that its records go to."""
    method, stored = parse_method(spec), dict(finished or {})
    engine = local_loop(method, *runners, setup=DecodingSetup(batch_size=batch_size))
    script = ConversationScript(
        [Conversation(prompt, tokenizer, TOKENS) for prompt in prompts], stored
    )
    sink = lambda record: stored.update({record.request_id: record})  # noqa: E731
    return MethodLane(spec, engine, script, tokenizer.decode, [sink], references), stored


def order(
    *lanes: MethodLane, turn: int, broken: dict[str, MethodError] | None = None
) -> list[tuple[str, str]]:
    noted = {} if broken is None else broken
    names = [
        (lane.name, record.request_id) for lane, record in run_in_turns(lanes, turn, broken=noted)
    ]
    assert broken is not None or not noted
    return names


def test_lanes_alternate_in_bursts_of_the_given_length(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    plain, records = make_lane("autoregressive", runners, tokenizer, PROMPTS)
    chains, _ = make_lane("fixed-k", runners, tokenizer, PROMPTS)
    plain_turn, chains_turn = ["autoregressive"] * 2, ["fixed-k"] * 2
    names = [name for name, _ in order(plain, chains, turn=2)]
    # Forwards, backwards, and then from the second lane on; the last turn of each has one request.
    assert names == [
        *plain_turn,
        *chains_turn,
        *chains_turn,
        *plain_turn,
        "fixed-k",
        "autoregressive",
    ]
    assert plain.done
    assert chains.done
    assert list(records) == ["q0", "q1", "q2", "q3", "q4"]
    assert all(record.text == tokenizer.decode(record.output_ids) for record in records.values())


@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
def test_no_lane_is_favoured_by_its_place(lanes: int) -> None:
    orders = [turn_order(lanes, turn) for turn in range(2 * lanes)]
    for position in range(lanes):
        assert sorted(order[position] for order in orders) == sorted([*range(lanes), *range(lanes)])
    for lane, other_lane in combinations(range(lanes), 2):
        assert sum(order.index(lane) < order.index(other_lane) for order in orders) == lanes
    # A steady drift costs each lane the same, to the digit: every pair of turns is forwards and backwards.
    for first in range(0, 2 * lanes, 2):
        assert orders[first] == orders[first + 1][::-1]


def test_the_clock_of_a_lane_stands_still_in_the_turns_of_others(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    first, _ = make_lane("autoregressive", runners, tokenizer, PROMPTS)
    second, _ = make_lane("fixed-k", runners, tokenizer, PROMPTS)
    list(first.turn(1))
    before_s = first.loop.clock.now_s()
    assert before_s > 0
    list(second.turn(5))
    assert first.loop.clock.now_s() == before_s


def test_the_next_turn_of_a_dialogue_goes_before_other_dialogues(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    lane, records = make_lane("fixed-k", runners, tokenizer, DIALOGUES)
    order(lane, turn=1)
    assert list(records) == ["a/1", "a/2", "b/1", "b/2", "c/1", "c/2"]
    first, second = (tokenizer.decode(records[name].prompt_ids) for name in ("a/1", "a/2"))
    assert second.startswith(first + records["a/1"].text.strip())


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_a_batch_of_dialogues_answers_every_turn_once(
    batch_size: int, runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    lane, _ = make_lane("fixed-k", runners, tokenizer, DIALOGUES, batch_size=batch_size)
    names = [name for _, name in order(lane, turn=batch_size)]
    assert sorted(names) == ["a/1", "a/2", "b/1", "b/2", "c/1", "c/2"]
    assert all(names.index(f"{name}/1") < names.index(f"{name}/2") for name in "abc")


def test_a_lane_with_references_asks_only_what_the_baseline_has_answered(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    plain, references = make_lane("autoregressive", runners, tokenizer, DIALOGUES)
    oracle, records = make_lane("oracle", runners, tokenizer, DIALOGUES, references=references)
    assert list(oracle.turn(1)) == []
    assert not oracle.done
    order(plain, oracle, turn=1)
    assert oracle.done
    assert {name: record.output_ids for name, record in records.items()} == {
        name: record.output_ids for name, record in references.items()
    }
    rounds = [step for record in records.values() for step in record.rounds]
    assert sum(step.submitted for step in rounds) == sum(step.accepted for step in rounds) > 0


def test_a_resumed_lane_leaves_out_what_is_finished(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    complete, before = make_lane("fixed-k", runners, tokenizer, DIALOGUES)
    order(complete, turn=1)
    finished = {name: before[name] for name in ("a/1", "a/2", "b/1")}
    resumed, after = make_lane("fixed-k", runners, tokenizer, DIALOGUES, finished=finished)
    assert [name for _, name in order(resumed, turn=1)] == ["b/2", "c/1", "c/2"]
    assert {name: record.output_ids for name, record in after.items()} == {
        name: record.output_ids for name, record in before.items()
    }


def test_a_request_that_does_not_fit_is_recorded_and_the_lane_goes_on(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = [PROMPTS[0], Prompt("long", "test", ("?" * 400, "And?")), PROMPTS[1]]
    lane, records = make_lane("fixed-k", runners, tokenizer, prompts)
    order(lane, turn=1)
    reasons = {name: record.finish_reason for name, record in records.items()}
    assert reasons == {"q0": "length", "long/1": "error", "long/2": "error", "q1": "length"}
    assert lane.tokens_per_s > 0


def test_the_turn_in_which_a_limit_begins_is_ended(
    runners: Runners, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A resumed run therefore gets on with every method, however short its time is."""
    lanes = [
        make_lane(spec, runners, tokenizer, PROMPTS)[0] for spec in ("autoregressive", "fixed-k")
    ]
    limit = TimeLimit(1e-9)
    finished = []
    for lane, record in run_in_turns(lanes, 1, limit, broken={}):
        finished.append((lane.name, record.request_id))
        if len(finished) == 3:  # the first record of the second turn is new
            limit.start()
    assert sorted(finished) == [
        (name, key) for name in ("autoregressive", "fixed-k") for key in ("q0", "q1")
    ]


def test_a_method_whose_policy_fails_ends_alone_and_is_named_at_the_end(
    runners: Runners, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_breaking_in(monkeypatch)
    broken: dict[str, MethodError] = {}
    breaking, stored = make_lane("breaking:request=0", runners, tokenizer, PROMPTS)
    chains, records = make_lane("fixed-k", runners, tokenizer, PROMPTS)
    order(breaking, chains, turn=2, broken=broken)
    assert re.match(
        "Breaking.*: .*root, which was not drafted", str(broken.pop("breaking:request=0"))
    )
    assert not broken
    assert stored == {}
    assert list(records) == ["q0", "q1", "q2", "q3", "q4"]
    waiting, _ = make_lane("oracle", runners, tokenizer, PROMPTS, references=stored)
    again, _ = make_lane("breaking:request=0", runners, tokenizer, PROMPTS)
    order(again, waiting, turn=2, broken=broken)
    assert list(broken) == ["breaking:request=0"]
    assert not waiting.done, "nobody gave the references that it waits for"
