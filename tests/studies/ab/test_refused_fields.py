"""Servers that refuse a field of a request: its newer name is tried once, and --leave-out leaves it out."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import error_line, skit_here
from http_servers import OneModelHandler, running
from scripted_streams import GENERATION

from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.client import RequestFailedError, StreamClient
from specbench_kit.live.engines.request_fields import field_names, named_in, without_fields
from specbench_kit.runs.directory import read_object

DOCUMENTS = (
    {"choices": [{"delta": {"content": "a"}}]},
    {
        "choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 2},
    },
)
ANSWER = b"".join(f"data: {json.dumps(document)}\n\n".encode() for document in DOCUMENTS)


@dataclass
class Strict:
    """A server that refuses some fields, and the requests that it got."""

    refuses: Sequence[str] = ()
    says: str = "Unsupported parameter: '{}' is not supported with this model."
    status: int = 400
    bodies: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def serving(strict: Strict) -> Iterator[str]:
    class StrictHandler(OneModelHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            strict.bodies.append(body)
            refused = next((name for name in strict.refuses if name in body), None)
            if refused is None:
                self.reply(200, ANSWER)
            else:
                self.reply(
                    strict.status,
                    json.dumps({"error": {"message": strict.says.format(refused)}}).encode(),
                )

    with running(ThreadingHTTPServer(("127.0.0.1", 0), StrictHandler)) as port:
        yield f"127.0.0.1:{port}"


def ask(strict: Strict, *left_out: str, times: int = 1) -> list[int]:
    """Return in how many attempts a server answered each of some requests."""

    async def asked(host: str) -> list[int]:
        client = StreamClient(parse_server(f"it=chat://{host}"), left_out=left_out)
        try:
            return [(await client.ask(GENERATION)).attempts for _ in range(times)]
        finally:
            await client.close()

    with serving(strict) as host:
        return asyncio.run(asked(host))


def test_the_newer_name_of_a_refused_field_is_tried_once_and_kept() -> None:
    strict = Strict(["max_tokens"])
    assert ask(strict, times=3) == [1, 1, 1]
    names = [[name for name in body if name.startswith("max_")] for body in strict.bodies]
    assert names == [["max_tokens"], *[["max_completion_tokens"]] * 3]
    assert {body.get("max_completion_tokens") for body in strict.bodies[1:]} == {
        GENERATION.max_tokens
    }


def test_where_both_names_are_refused_the_first_refusal_is_told_with_what_leaves_the_field_out() -> (
    None
):
    strict = Strict(["max_tokens", "max_completion_tokens"])
    with pytest.raises(RequestFailedError) as failed:
        ask(strict)
    line = str(failed.value)
    assert "'max_tokens' is not supported" in line
    assert line.endswith("; to ask without: --leave-out max_tokens")
    assert len(strict.bodies) == 2
    assert ask(Strict(["max_tokens", "max_completion_tokens"]), "max_tokens") == [1]


@pytest.mark.parametrize("name", ["stream_options", "seed", "temperature", "top_p"])
def test_a_refused_field_is_named_and_can_be_left_out(name: str) -> None:
    strict = Strict([name])
    with pytest.raises(RequestFailedError, match=f"; to ask without: --leave-out {name}$"):
        ask(strict)
    assert len(strict.bodies) == 1
    assert ask(Strict([name]), name) == [1]


def test_a_refusal_in_the_place_of_a_stream_has_the_same_advice() -> None:
    with pytest.raises(
        RequestFailedError,
        match=r"no event; the server said: .*; to ask without: --leave-out seed$",
    ):
        ask(Strict(["seed"], status=200))


def test_a_refusal_that_names_no_field_has_no_advice() -> None:
    with pytest.raises(RequestFailedError) as failed:
        ask(Strict(["seed"], says="the model is not loaded"))
    assert "--leave-out" not in str(failed.value)


def test_fields_inside_others() -> None:
    body = {"text": "a", "stream": True, "sampling_params": {"min_p": 0.0, "top_p": 1.0}}
    assert list(field_names(body)) == [
        "sampling_params",
        "sampling_params.min_p",
        "sampling_params.top_p",
    ]
    assert without_fields(body, ["sampling_params.min_p"]) == {
        **body,
        "sampling_params": {"top_p": 1.0},
    }
    assert named_in("extra field min_p", list(field_names(body))) == ["sampling_params.min_p"]
    assert named_in("extra field max_min_p", list(field_names(body))) == []


def compare(plain: Strict, spec: Strict, prompts: Path, out: Path, *options: str) -> Any:
    with serving(plain) as first, serving(spec) as second:
        servers = [f"plain=chat://{first}", f"spec=chat://{second}"]
        run = ("--dataset", prompts, "--repeats", 1, "--warm-up", 0, "--out", out)
        return skit_here("ab", *servers, *run, *options)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": f"p{number}", "prompt": f"say {number}"}) + "\n"
            for number in range(2)
        )
    )
    return path


def test_a_comparison_without_a_field_says_so_and_what_was_renamed(
    prompts: Path, tmp_path: Path
) -> None:
    plain, spec = Strict(), Strict(["max_tokens"])
    done = compare(
        plain,
        spec,
        prompts,
        tmp_path / "out",
        "--leave-out",
        "stream_options",
        "--leave-out",
        "seed",
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert all(
        "stream_options" not in body and "seed" not in body
        for body in [*plain.bodies, *spec.bodies]
    )
    assert read_object(folder / "run.json")["config"]["leave_out"] == ["stream_options", "seed"]
    report = (folder / "report.md").read_text()
    assert "FIELDS LEFT OUT: no request states stream_options, seed" in report
    assert "spec refuses max_tokens, and got max_completion_tokens in its place." in report
    summary = read_object(folder / "summary.json")
    assert {
        load["servers"][name]["tokens"] for load in summary["loads"] for name in ("plain", "spec")
    } == {4}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--leave-out", "messages"),
            "--leave-out messages: requests have no such field, or need it; max_tokens, ",
        ),
        (("--leave-out", "n_predict"), "--leave-out n_predict: requests have no such field"),
        (
            ("--leave-out", "max_tokens", "--max-new-tokens", "9"),
            "--max-new-tokens has no effect with --leave-out max_tokens: no request states it; leave out one of them",
        ),
        (
            ("--leave-out", "seed", "--leave-out", "temperature", "--temperature", "0.5"),
            "--temperature has no effect with --leave-out seed --leave-out temperature",
        ),
    ],
)
def test_what_cannot_be_left_out_is_refused_before_any_request(
    options: tuple[str, ...], words: str, prompts: Path, tmp_path: Path
) -> None:
    plain = Strict()
    assert words in error_line(compare(plain, Strict(), prompts, tmp_path / "out", *options))
    assert plain.bodies == []
