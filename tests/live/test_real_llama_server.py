"""llama.cpp's own server, from the package `xllamacpp`: its routes tell of the same answer."""

import asyncio
from typing import Any

import pytest
from tiny_gguf import CONTEXT, write_model

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.answers import StreamedAnswer
from specbench_kit.live.engines.base import Generation
from specbench_kit.live.engines.client import StreamClient

xllamacpp = pytest.importorskip("xllamacpp", reason="pip install --no-deps xllamacpp")

TOKENS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server in this process, which ends with the object."""
    options = xllamacpp.CommonParams()
    options.model.path = str(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    options.n_ctx, options.n_parallel, options.port, options.verbosity = CONTEXT, 1, 0, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.chat_template = "chatml"
    options.endpoint_metrics = True
    return xllamacpp.Server(options)


@pytest.fixture
def host(server: Any) -> str:
    return str(server.listening_address).removeprefix("http://")


async def asked(host: str, kind: str, *left_out: str) -> tuple[StreamedAnswer, dict[str, float]]:
    client = StreamClient(parse_server(f"it={kind}://{host}"), left_out=left_out)
    try:
        client.dialect.model_name = (await client.facts()).model or ""
        answer = await client.ask(
            Generation("to be or not to be", TOKENS, Sampler(), 1, "a", ignore_eos=True)
        )
        return answer.received.answer(), await client.counters()
    finally:
        await client.close()


def ask(host: str, kind: str, *left_out: str) -> tuple[StreamedAnswer, dict[str, float]]:
    return asyncio.run(asked(host, kind, *left_out))


@pytest.mark.parametrize("pair", [("llama-cpp", "completions"), ("llama-cpp-chat", "chat")])
def test_its_routes_stream_the_same_answer(host: str, pair: tuple[str, str]) -> None:
    answers = [ask(host, kind)[0] for kind in pair]
    for answer in answers:
        assert answer.finish_reason == "length"
        times = [burst.at_s for burst in answer.bursts]
        assert times == sorted(times)
        assert (answer.ttft_s, answer.e2e_s) == (times[0], times[-1])
    assert answers[0].text == answers[1].text
    assert answers[0].prompt_tokens == answers[1].prompt_tokens
    # Bytes of a character that never became whole are counted by usage, and never arrive in a stream that counts as it
    # goes: a character has at most four.
    assert answers[1].tokens == TOKENS
    assert TOKENS - 3 <= answers[0].tokens <= TOKENS


def test_without_a_limit_and_usage_its_chat_goes_on_and_is_counted_by_chunks(host: str) -> None:
    answer, _ = ask(host, "chat", "max_tokens", "stream_options")
    assert (answer.finish_reason, answer.counted_by) == ("length", "chunks")
    assert answer.tokens > TOKENS


def test_its_counters_are_read(host: str) -> None:
    assert ask(host, "chat")[1].keys() >= {"rounds", "drafted", "accepted"}
