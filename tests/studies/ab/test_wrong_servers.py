"""Servers of another kind, path or model than the address says: refused in one line, before a folder is made."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

import live_server
import pytest
from command_line import error_line, read_rows, skit_here, write_rows
from http_servers import OneModelHandler, running

EVENT = json.dumps(
    {"choices": [{"text": "a b", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
)
EMPTY = json.dumps(
    {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
)
STREAM = f"data: {EVENT}\n\ndata: [DONE]\n\n".encode()
ENDED_AT_ONCE = f"data: {EMPTY}\n\ndata: [DONE]\n\n".encode()


@dataclass
class Scripted:
    """A server with one model, which answers so many requests, and all others in one way."""

    status: int
    content: bytes
    answers: int = 0


@contextmanager
def serving(scripted: Scripted) -> Iterator[str]:
    class ScriptedHandler(OneModelHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            scripted.answers -= 1
            if scripted.answers >= 0:
                self.reply(200, STREAM)
            else:
                self.reply(scripted.status, scripted.content)

    with running(ThreadingHTTPServer(("127.0.0.1", 0), ScriptedHandler)) as port:
        yield f"127.0.0.1:{port}"


def compared(
    scripted: Scripted, folder: Path, *options: object, model: str = "", prompts: int = 2
) -> tuple[str, str]:
    """Compare a server with itself, and return the line of the error and what was printed."""
    rows = [
        {"id": f"p{number}", "prompt": f"prompt {number}", "chat": False}
        for number in range(prompts)
    ]
    dataset = write_rows(folder / "prompts.jsonl", *rows)
    with serving(scripted) as host:
        servers = [f"a=vllm://{host}{model}", f"b=vllm://{host}{model}"]
        done = skit_here(
            "ab", *servers, "--dataset", dataset, "--out", folder / "out", "--retries", 0, *options
        )
    return error_line(done), done.stdout


@pytest.mark.parametrize(
    ("scripted", "model", "says", "advice"),
    [
        (
            Scripted(404, b'{"detail": "Not Found"}'),
            "",
            "answered 404",
            "or another kind of chat, completions, ",
        ),
        (
            Scripted(404, b'{"message": "no x"}'),
            "#x",
            "no x",
            "the model x is none of those that it lists: name one",
        ),
        (
            Scripted(405, b"no such method"),
            "#tiny",
            "answered 405",
            "is it a server of the kind vllm? Its requests go",
        ),
        (
            Scripted(401, b"who are you"),
            "",
            "answered 401",
            "set the environment variable SKIT_API_KEY",
        ),
        (
            Scripted(500, b"out of memory"),
            "",
            "out of memory",
            "the log of the server may say more",
        ),
        (
            Scripted(200, b"<html>welcome</html>"),
            "",
            "<html>welcome</html>",
            "is it a server of the kind vllm?",
        ),
        (
            Scripted(200, b'{"choices": []}'),
            "",
            "no token arrived",
            "is it a server of the kind vllm?",
        ),
        (
            Scripted(200, ENDED_AT_ONCE),
            "",
            "the model ended at once (stop)",
            "template give the kind vllm-chat",
        ),
    ],
    ids=str,
)
def test_a_server_that_cannot_be_asked_is_refused_with_what_to_do(
    scripted: Scripted, model: str, says: str, advice: str, tmp_path: Path
) -> None:
    line, printed = compared(scripted, tmp_path, model=model)
    assert line.startswith("a (http://127.0.0.1:")
    assert says in line
    assert advice in line
    assert ("is it a server of" in line) == (
        "is it a server of" in advice or "another kind" in advice
    )
    assert "Results" not in printed
    assert not (tmp_path / "out").exists()


def test_a_server_that_refuses_whole_answers_leaves_no_folder_either(tmp_path: Path) -> None:
    """The probes of both servers are answered, and the first longer answer of the warm-up is not."""
    line, printed = compared(Scripted(400, b"max_tokens is too large", answers=2), tmp_path)
    assert "a request fails while the servers warm up: a (http://" in line
    assert "max_tokens is too large" in line
    assert line.endswith("nothing is kept, since no request was answered")
    assert "report:" not in printed
    assert list((tmp_path / "out").iterdir()) == []


def test_servers_that_answer_nothing_are_not_asked_for_all_prompts(tmp_path: Path) -> None:
    scripted = Scripted(404, b"gone", answers=2)
    line, _ = compared(scripted, tmp_path, "--warm-up", 0, prompts=40)
    assert "answered none of 8 requests: /v1/completions answered 404: gone" in line
    assert scripted.answers >= -16
    assert list((tmp_path / "out").iterdir()) == []


def test_an_answer_among_failures_is_kept(tmp_path: Path) -> None:
    line, _ = compared(Scripted(404, b"gone", answers=3), tmp_path, "--warm-up", 0, prompts=40)
    assert "answered none of 8 requests" in line
    (folder,) = (tmp_path / "out").glob("*-ab-*")
    assert sum(row["answer"] is not None for row in read_rows(folder / "answers.jsonl")) == 1


@pytest.mark.parametrize("options", [("--dataset", "gsm8k", "--data-dir", "."), ("--ignore-eos",)])
def test_kinds_are_checked_before_prompts_are_looked_for(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    kind = "chat" if "--ignore-eos" in options else "llm"
    done = skit_here("ab", "a=vllm://h:1", f"b={kind}://h:2", *options, "--out", tmp_path / "out")
    assert (
        "unknown kind of server 'llm'" if kind == "llm" else "b is of the kind chat"
    ) in error_line(done)
    assert done.stdout == ""


def test_skit_serve_is_recognised(tmp_path: Path) -> None:
    dataset = write_rows(tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"})
    with live_server.serving() as (_, address):
        servers = [f"a=completions://{address}", f"b=completions://{address}"]
        done = skit_here("ab", *servers, "--dataset", dataset, "--out", tmp_path / "out")
    assert error_line(done) == (
        f"a (http://{address}): it speaks gRPC, as skit serve does, which verifies drafts and takes no prompts: "
        f"measure it with skit bench --server {address}"
    )


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (
            "http://h:1/v1/completions",
            "leave out /v1/completions, since the kind of a server adds its route: write "
            "b=completions://h:1",
        ),
        (
            "https://h/v1/chat/completions/",
            "leave out /v1/chat/completions, since the kind of a server adds its route: "
            "write b=chat+https://h",
        ),
        (
            "llama-cpp://h:1/x/completion",
            "leave out /completion, since the kind of a server adds its route: write "
            "b=llama-cpp://h:1/x",
        ),
    ],
)
def test_the_route_of_a_pasted_address_is_to_be_left_out(given: str, advice: str) -> None:
    line = error_line(skit_here("ab", "a=vllm://h:1", f"b={given}", "--limit", 1))
    assert line == f"b: {advice}"


def test_a_server_that_describes_no_models_is_told_in_whole_sentences(tmp_path: Path) -> None:
    dataset = write_rows(tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"})

    class NoModelsHandler(OneModelHandler):
        def do_GET(self) -> None:
            self.reply(404, b"nothing here")

    with running(ThreadingHTTPServer(("127.0.0.1", 0), NoModelsHandler)) as port:
        servers = [f"{name}=completions://127.0.0.1:{port}" for name in "ab"]
        line = error_line(
            skit_here("ab", *servers, "--dataset", dataset, "--out", tmp_path / "out")
        )
    assert (
        "is it a server of the kind completions? If it describes no models, name yours: a=" in line
    )


@pytest.mark.parametrize("web", ["", "+https"])
def test_where_nothing_listens_the_kind_is_not_doubted(web: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(
            ("127.0.0.1", 0)
        )  # a port that no other program has, and on which nothing listens
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        dataset = write_rows(tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"})
        servers = [f"a=vllm{web}://{host}", f"b=vllm{web}://{host}"]
        line = error_line(
            skit_here("ab", *servers, "--dataset", dataset, "--out", tmp_path / "out")
        )
    assert line.startswith(f"a (http{'s' if web else ''}://{host}): ")
    assert line.endswith("; start the server, or give another address")
    assert "is it a server of" not in line


def test_a_server_without_tls_listens_all_the_same(tmp_path: Path) -> None:
    dataset = write_rows(tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"})
    with serving(Scripted(200, STREAM)) as host:
        servers = [f"a=vllm+https://{host}", f"b=vllm+https://{host}"]
        line = error_line(
            skit_here("ab", *servers, "--dataset", dataset, "--out", tmp_path / "out")
        )
    assert "start the server" not in line
