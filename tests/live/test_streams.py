"""Answers streamed by real servers of every kind: tokens, times, retries, keys and what goes wrong."""

import asyncio
import shutil
from pathlib import Path

import pytest
from certificates import make_certificate
from live_server import TARGET
from streaming_server import LETTERS, streaming_server, text_of
from tiny_models import plain_greedy

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.answers import Burst, DraftCounts, StreamedAnswer, divided
from specbench_kit.live.engines.base import Generation, ServerFacts, StreamEvent, dialects
from specbench_kit.live.engines.client import (
    Patience,
    RequestFailedError,
    SentRequest,
    StreamClient,
)
from specbench_kit.live.engines.counters import change, have_fallen, read_counters
from specbench_kit.live.engines.received import ReceivedStream

PROMPT = "prompt number 11"
COUNT = 17
GREEDY = Sampler()
PATIENCE = Patience()
TOKENS = plain_greedy(TARGET, [LETTERS.find(letter) % 64 for letter in PROMPT], COUNT)[0]


def request(prompt: str = PROMPT) -> Generation:
    return Generation(prompt, COUNT, GREEDY, seed=3, label="a")


async def ask(
    address: str, key: str = "", patience: Patience = PATIENCE
) -> tuple[ServerFacts, SentRequest]:
    client = StreamClient(parse_server(f"it={address}"), key, patience)
    try:
        facts = await client.facts()
        client.dialect.model_name = facts.model or ""
        return facts, await client.ask(request())
    finally:
        await client.close()


def answer_of(
    address: str, key: str = "", patience: Patience = PATIENCE
) -> tuple[ServerFacts, StreamedAnswer, int]:
    facts, sent = asyncio.run(ask(address, key, patience))
    return facts, sent.received.answer(), sent.attempts


@pytest.mark.parametrize("kind", list(dialects.all()))
@pytest.mark.parametrize("speculates", [False, True])
def test_every_kind_of_server_streams_the_same_answer(kind: str, speculates: bool) -> None:
    with streaming_server(speculates=speculates) as (host, engine):
        facts, answer, attempts = answer_of(f"{kind}://{host}")
    assert (facts.model, answer.text, answer.tokens, attempts) == (
        "tiny",
        text_of(TOKENS),
        COUNT,
        1,
    )
    assert answer.finish_reason == "length"
    names_tokens = kind not in ("chat", "completions", "llama-cpp-chat", "sglang-chat")
    assert answer.token_ids == (TOKENS if names_tokens else None)
    # A server that speculates sends fewer chunks than tokens: then those of a chunk can only be estimated.
    by_total = "usage at the end" if speculates else "one per chunk"
    assert answer.counted_by == ("token ids" if names_tokens else by_total)
    times = [burst.at_s for burst in answer.bursts]
    assert times == sorted(times)
    assert answer.ttft_s <= answer.e2e_s
    ((path, body),) = engine.requests
    assert path == dialects.get(kind).path
    assert body.get("stream") in (True, None)


@pytest.mark.parametrize("kind", ["vllm", "vllm-chat", "sglang", "sglang-chat", "llama-cpp"])
def test_a_server_that_speculates_reports_what_it_accepted(kind: str) -> None:
    with streaming_server(speculates=True) as (host, engine):
        _, answer, _ = answer_of(f"{kind}://{host}")
    # The first token of an answer is the prompt's, and vLLM counts only the rounds in which something was drafted.
    rounds = list(engine.decode(PROMPT, COUNT))[1:]
    counted = [forward for forward in rounds if forward.drafted or not kind.startswith("vllm")]
    accepted = sum(forward.accepted for forward in rounds)
    assert accepted > 0
    assert answer.drafts is not None
    assert (answer.drafts.rounds, answer.drafts.accepted) == (len(counted), accepted)
    assert answer.committed == len(counted) + accepted <= answer.tokens - 1


@pytest.mark.parametrize("kind", ["llama-cpp", "llama-cpp-chat"])
def test_every_sampling_field_is_sent_to_llama_cpp(kind: str) -> None:
    """Otherwise the server's own defaults, such as min_p 0.05, would apply."""
    with streaming_server() as (host, engine):
        answer_of(f"{kind}://{host}")
    body = engine.requests[0][1]
    assert (body["min_p"], body["top_k"], body["top_p"], body["repeat_penalty"]) == (
        0.0,
        0,
        1.0,
        1.0,
    )
    assert body["cache_prompt"] is False


def test_no_two_requests_to_vllm_share_a_prefix_cache() -> None:
    first, second = (Generation(PROMPT, 1, GREEDY, 0, label) for label in ("1", "2"))
    dialect = dialects.get("vllm")()
    assert dialect.body(first)["cache_salt"] != dialect.body(second)["cache_salt"]


def test_a_busy_server_and_a_broken_stream_are_asked_again() -> None:
    with streaming_server(refuses=1, breaks=1) as (host, engine):
        _, answer, attempts = answer_of(f"vllm://{host}")
    assert (answer.token_ids, attempts, len(engine.requests)) == (TOKENS, 3, 3)
    with (
        streaming_server(breaks=5) as (host, _),
        pytest.raises(RequestFailedError, match="before the answer did"),
    ):
        answer_of(f"vllm://{host}", patience=Patience(retries=1))


def test_a_request_that_the_server_does_not_understand_is_not_sent_again() -> None:
    class WithoutRoute(dialects.get("vllm")):  # type: ignore[misc]
        path = "/none"

    async def lost(host: str) -> None:
        client = StreamClient(parse_server(f"it=vllm://{host}"))
        client.dialect = WithoutRoute()
        try:
            await client.ask(request())
        finally:
            await client.close()

    with streaming_server() as (host, engine), pytest.raises(RequestFailedError) as failure:
        asyncio.run(lost(host))
    assert failure.value.attempts <= 3
    assert len(engine.requests) == failure.value.attempts


def test_a_silent_server_fails_after_its_time() -> None:
    with (
        streaming_server(slow_s=1.0) as (host, _),
        pytest.raises(RequestFailedError, match=r"nothing arrived for 0\.2 s"),
    ):
        answer_of(f"vllm://{host}", patience=Patience(0.2, 0))


def test_a_key_opens_the_server_and_stands_in_no_message() -> None:
    with streaming_server(key="sesame") as (host, _):
        assert answer_of(f"vllm://{host}", key="sesame")[1].token_ids == TOKENS
        with pytest.raises(
            SkitError, match="answered 401: set the environment variable SKIT_API_KEY"
        ):
            answer_of(f"vllm://{host}", key="wrong")
    client = StreamClient(parse_server("it=vllm://127.0.0.1:1"), "sesame")
    assert client._cleaned("no key sesame here") == "no key *** here"
    asyncio.run(client.close())


def test_a_server_that_is_not_there_is_one_line() -> None:
    with streaming_server() as (host, _):
        pass
    with pytest.raises(SkitError, match=r"it \(http://127\.0\.0\.1:"):
        answer_of(f"vllm://{host}", patience=Patience(retries=0))


@pytest.mark.parametrize(
    ("text", "base", "dialect", "model"),
    [
        ("a=vllm://h:1", "http://h:1", "vllm", ""),
        ("a=chat+https://h.example/v1#big", "https://h.example", "chat", "big"),
        ("a=http://h:1/x/v1/", "http://h:1/x", "completions", ""),
        ("a=tgi://[::1]:80", "http://[::1]:80", "tgi", ""),
    ],
)
def test_addresses(text: str, base: str, dialect: str, model: str) -> None:
    address = parse_server(text)
    assert (address.base, address.dialect, address.model) == (base, dialect, model)


@pytest.mark.parametrize(
    "text",
    [
        "vllm://h:1",
        "a=vllm://",
        "a=vllm://u:secret@h:1",
        "a=https://h/?key=secret",
        "a=vllm://h:x",
        "=http://h",
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(SkitError) as error:
        parse_server(text)
    assert "secret" not in str(error.value)


def received(*events: tuple[float, StreamEvent]) -> ReceivedStream:
    stream = ReceivedStream()
    for at_s, event in events:
        stream.add(event, at_s)
    return stream


def test_tokens_that_arrive_together_are_one_burst() -> None:
    events = [(at_s, StreamEvent("a", [1], 1, "token ids")) for at_s in (0.1, 0.1001, 0.1002, 0.2)]
    assert received(*events).answer().bursts == [Burst(0.1, 3), Burst(0.2, 1)]


def test_running_usage_counts_the_tokens_of_a_chunk() -> None:
    events = [(0.1, StreamEvent("ab", total_tokens=2)), (0.2, StreamEvent("cde", total_tokens=5))]
    answer = received(*events).answer()
    assert (answer.bursts, answer.counted_by) == ([Burst(0.1, 2), Burst(0.2, 3)], "running usage")


def test_a_total_at_the_end_is_divided_by_text_or_as_a_tokenizer_divides_it() -> None:
    texts = [(0.1, StreamEvent("a")), (0.2, StreamEvent("b" * 9))]
    stream = received(*texts, (0.2, StreamEvent(total_tokens=6)))
    assert (stream.answer().bursts, stream.answer().counted_by) == (
        [Burst(0.1, 1), Burst(0.2, 5)],
        "usage at the end",
    )
    halves = stream.answer(lambda text: min(len(text), 1) + len(text) // 9)
    assert (halves.bursts, halves.counted_by) == (
        [Burst(0.1, 3), Burst(0.2, 3)],
        "usage at the end",
    )
    alone = received(*texts).answer(len)
    assert (alone.bursts, alone.counted_by) == ([Burst(0.1, 1), Burst(0.2, 9)], "tokenizer")


def test_without_any_count_chunks_are_counted_and_it_is_said() -> None:
    answer = received((0.1, StreamEvent("a")), (0.2, StreamEvent("bcd"))).answer()
    assert (answer.tokens, answer.counted_by) == (2, "chunks")


@pytest.mark.parametrize(
    ("total", "weights"), [(7, [1, 1, 1]), (3, [9, 1, 1]), (2, [1, 1, 1]), (100, [1, 50, 3])]
)
def test_parts_sum_to_the_total(total: int, weights: list[int]) -> None:
    parts = divided(total, weights)
    assert sum(parts) == total
    assert len(parts) == len(weights)
    assert min(parts) >= (total >= len(weights))


def test_counters_before_and_after() -> None:
    text = (
        'vllm:spec_decode_num_drafts_total{a="1"} 3.0\nvllm:spec_decode_num_drafts_total{a="2"} 4\n'
    )
    text += (
        "vllm:spec_decode_num_draft_tokens_total 20\nvllm:spec_decode_num_accepted_tokens_total 9\n"
    )
    before = read_counters(text)
    assert before == {"rounds": 7.0, "drafted": 20.0, "accepted": 9.0}
    after = {"rounds": 9.0, "drafted": 28.0, "accepted": 12.0}
    assert change(before, after) == DraftCounts(2, 8, 3)
    assert change(after, before) is None
    assert change({}, {}) is None
    assert have_fallen(after, before)
    assert not have_fallen(before, after)


def test_counters_of_positions_and_of_no_number() -> None:
    name = "vllm:spec_decode_num_accepted_tokens"
    text = f'{name}_per_pos_total{{position="0"}} 5\n{name}_per_pos_total{{position="1"}} 3\n{name}_total NaN\n'
    assert read_counters(text) == {"accepted_first": 5.0}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_an_encrypted_server_needs_a_known_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with streaming_server(tls=(certificate, key)) as (host, _):
        address = parse_server(f"it=vllm+https://{host}")

        async def ask_with(ca_file: Path | None) -> StreamedAnswer:
            client = StreamClient(address, ca_file=ca_file)
            try:
                await client.facts()
                return (await client.ask(request())).received.answer()
            finally:
                await client.close()

        assert asyncio.run(ask_with(certificate)).token_ids == TOKENS
        with pytest.raises(SkitError, match=r"CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(ask_with(None))
    with pytest.raises(SkitError, match="holds no certificates"):
        StreamClient(address, ca_file=tmp_path / "none.pem")
