"""Adapters to other engines, over the wire formats of these, around a real model."""

import pytest
from engine_server import engine_server
from live_server import CAPACITY, TARGET, VOCABULARY, decode_here, draft_runner, run
from tiny_models import GREEDY, make_requests, outputs, plain_logits, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.assembly import remote_loop, streamed_loop
from specbench_kit.live.engine_verifier import (
    CLEAR_MARGIN,
    EngineJudge,
    EngineStream,
    EngineVerifier,
)
from specbench_kit.live.engines.base import ScoringRequest, engines
from specbench_kit.live.engines.llama_cpp import LlamaCpp
from specbench_kit.live.pair import DraftModels, ServedHeads
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.servers import connect
from specbench_kit.methods.spec import parse_method

REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 7)
SAMPLED = Sampler(0.8, top_k=20)
Records = dict[str, RequestRecord]


def decode_with(engine: str, spec: str, sampler: Sampler = GREEDY) -> dict[str, RequestRecord]:
    method = parse_method(spec)
    with engine_server() as base:
        adapter = engines.get(engine)(base)
        assert adapter.model()[0] == "tiny"
        loop = remote_loop(
            method,
            {"draft": draft_runner(2)},
            lambda _: EngineVerifier(adapter, sampler, 0),
            DecodingSetup(sampler=sampler, batch_size=2, capacity=CAPACITY),
        )
        for request in REQUESTS:
            loop.submit(request)
        records: dict[str, RequestRecord] = {}
        while not loop.idle:
            records |= {record.request_id: record for record in loop.step()}
    return records


@pytest.mark.parametrize("engine", list(engines.all()))
def test_greedy_chains_come_out_as_with_the_target_here(engine: str) -> None:
    records = decode_with(engine, "fixed-k:k=3")
    assert outputs(records) == outputs(decode_here(parse_method("fixed-k:k=3"), REQUESTS))
    assert sum(round_.accepted for record in records.values() for round_ in record.rounds) > 0


@pytest.mark.parametrize(
    "engine", [name for name, kind in engines.all().items() if kind.supports_sampling]
)
def test_what_the_engine_draws_is_what_it_draws_in_plain_decoding(engine: str) -> None:
    plain = decode_with(engine, "autoregressive", SAMPLED)
    records = decode_with(engine, "prompt-lookup", SAMPLED)
    assert outputs(records) == outputs(plain)


def generate_with(
    engine: str, sampler: Sampler = GREEDY, eos_ids: frozenset[int] = frozenset()
) -> Records:
    with engine_server() as base:
        stream = EngineStream(engines.get(engine)(base), sampler, 0)
        return run(
            streamed_loop(stream, DecodingSetup(eos_ids=eos_ids, batch_size=2, capacity=CAPACITY)),
            REQUESTS,
        )


@pytest.mark.parametrize("engine", list(engines.all()))
def test_an_engine_decodes_by_itself_in_one_request_and_its_tokens_arrive_one_by_one(
    engine: str,
) -> None:
    records = generate_with(engine)
    assert outputs(records) == outputs(decode_here(parse_method("autoregressive"), REQUESTS))
    for record in records.values():
        ends_s = [step.end_s for step in record.rounds]
        assert len(ends_s) == 7
        assert ends_s == sorted(ends_s)


def test_a_response_is_given_up_at_an_end_that_only_the_device_knows() -> None:
    (name, tokens), *_ = outputs(decode_here(parse_method("autoregressive"), REQUESTS)).items()
    shortened = outputs(generate_with("completions", eos_ids=frozenset({tokens[2]})))
    assert shortened[name] == tokens[: tokens.index(tokens[2]) + 1]


def test_an_engine_samples_by_its_own_sampler() -> None:
    sampled, greedy = generate_with("completions", SAMPLED), generate_with("completions")
    assert [len(record.output_ids) for record in sampled.values()] == [7, 7]
    assert outputs(sampled) != outputs(greedy)


def test_an_engine_that_is_away_is_one_line_and_no_endless_wait() -> None:
    adapter = engines.get("completions")("http://127.0.0.1:9")
    adapter.__dict__["_model"] = "tiny"
    stream = EngineStream(adapter, GREEDY, 0)
    loop = streamed_loop(stream, DecodingSetup(capacity=CAPACITY))
    with pytest.raises(SkitError, match=r"http://127.0.0.1:9/v1/completions broke off: "):
        run(loop, REQUESTS)


def test_trees_and_tokens_drawn_at_random_are_refused_in_one_line() -> None:
    with pytest.raises(SkitError, match="another engine verifies chains alone"):
        decode_with("sglang", "specinfer:branching=2-1")
    with pytest.raises(SkitError, match="probabilities that sampled drafts need"):
        decode_with("completions", "fixed-k", SAMPLED)


class Bytes:
    """A tokenizer whose tokens are bytes, moved by some."""

    eos_token_id = None

    def __init__(self, by: int = 0) -> None:
        self._by = by
        self.added_tokens_decoder: dict[int, object] = {}

    def __len__(self) -> int:
        return VOCABULARY

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [byte + self._by for byte in text.encode()]


def test_an_engine_is_reached_by_its_name_if_it_has_the_same_tokenizer() -> None:
    with engine_server() as base:
        server = ServerAddress(base.replace("http", "vllm"))
        drafts = DraftModels(Bytes(), {}, ())
        target = connect(server, drafts).target
        assert drafts.with_target(target, ServedHeads()).all_runners(slots=1, length=16) == {}
        assert (target.name, target.context, target.bitwise) == ("tiny", CAPACITY, False)
        with pytest.raises(SkitError, match="has another tokenizer than the draft model"):
            connect(server, DraftModels(Bytes(1), {}, ()))
    with pytest.raises(
        SkitError, match="unknown engine 'tgi'; known: completions, llama-cpp, sglang, vllm"
    ):
        connect(ServerAddress("tgi://127.0.0.1:1"), DraftModels(Bytes(), {}, ()))


def test_an_engine_that_is_not_there_is_one_line() -> None:
    request = ScoringRequest([1], [2], GREEDY, [0, 0])
    with (
        engine_server() as base,
        pytest.raises(SkitError, match="/x/inference/v1/generate answered 404"),
    ):
        engines.get("vllm")(f"{base}/x").target_tokens(request)
    with pytest.raises(SkitError, match="gave no answer"):
        engines.get("vllm")(base).target_tokens(request)
    with pytest.raises(SkitError, match="is no address"):
        engines.get("vllm")("http://127.0.0.1:none")


@pytest.mark.parametrize("engine", list(engines.all()))
def test_a_difference_is_judged_by_what_the_engine_says_of_both_tokens(engine: str) -> None:
    plain = RequestRecord("a", "", [5, 7, 9], [3, 4, 2])
    scores = plain_logits(TARGET, [5, 7, 9, 3]).log_softmax(-1)[-1]
    best, *runners_up = scores.argsort(descending=True).tolist()
    plain.output_ids[1] = best
    with engine_server() as base:
        judge = EngineJudge(engines.get(engine)(base), GREEDY)
        near, far = (
            judge.judge(RequestRecord("a", "", [5, 7, 9], [3, token, 2]), plain, 1)
            for token in (runners_up[0], runners_up[-1])
        )
    assert (near.verdict, near.baseline_token, near.method_token) == (
        "unjudged",
        best,
        runners_up[0],
    )
    if near.margin is None:
        assert "no log-probabilities" in near.reason
        assert far.verdict == "unjudged"
        return
    assert near.noise == 0
    assert near.margin == pytest.approx(float(scores[best] - scores[runners_up[0]]), abs=1e-5)
    assert far.verdict == (
        "error" if scores[best] - scores[runners_up[-1]] > CLEAR_MARGIN else "unjudged"
    )
    assert judge.cost.outputs == 2


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({4: 0.0, 9: 0.0}, "cannot be right: the chances of 2 tokens come to 2"),
        ({4: -0.1, 9: float("nan")}, "cannot be right"),
        ({4: -0.1, 8: -3.0}, "no log-probabilities of the tokens that differ"),
    ],
)
def test_log_probabilities_that_cannot_be_right_judge_nothing(
    values: dict[int, float], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that speculates by itself may give every token of its answer a chance of 1."""
    monkeypatch.setattr(LlamaCpp, "log_probabilities", lambda *_, **__: values)
    with engine_server() as base:
        judge = EngineJudge(engines.get("llama-cpp")(base), GREEDY)
        result = judge.judge(
            RequestRecord("a", "", [5, 7], [3, 9]), RequestRecord("a", "", [5, 7], [3, 4]), 1
        )
    assert result.verdict == "unjudged"
    assert reason in result.reason
