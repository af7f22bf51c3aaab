"""Servers that redirect: followed within their host, named with their target elsewhere, and no key goes there."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from http_servers import running
from scripted_streams import GENERATION, ONCE
from streaming_server import FACTS
from test_odd_servers import KEY, ending, events

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.base import GenerationRequest, engines
from specbench_kit.live.engines.client import RequestFailedError, StreamClient

NEW = "/v2"


@dataclass
class Moved:
    """A server whose routes are elsewhere, and the requests that it got: method, path and key."""

    status: int
    target: Callable[[str], str] = lambda path: f"{NEW}{path}"
    """Returns what it answers as the new address of a path."""
    body: bytes = b""
    got: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def posts(self) -> list[str]:
        return [path for method, path, _ in self.got if method == "POST"]


@contextmanager
def serving(moved: Moved) -> Iterator[str]:
    class MovedHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(json.dumps(FACTS.get(self.path.removeprefix(NEW), {})).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(moved.body)

        def answer(self, content: bytes) -> None:
            moved.got.append((self.command, self.path, self.headers.get("Authorization", "")))
            is_there = self.path.startswith(NEW)
            self.send_response(200 if is_there else moved.status)
            if not is_there:
                self.send_header("Location", moved.target(self.path))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            return

    with running(ThreadingHTTPServer(("127.0.0.1", 0), MovedHandler)) as port:
        yield f"127.0.0.1:{port}"


def ask(host: str, times: int = 1) -> list[str | None]:
    async def asked() -> list[str | None]:
        client = StreamClient(parse_server(f"it=chat://{host}"), KEY, ONCE)
        try:
            assert (await client.facts()).model == "tiny"
            return [(await client.ask(GENERATION)).received.answer().text for _ in range(times)]
        finally:
            await client.close()

    return asyncio.run(asked())


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_within_the_host_is_followed_with_the_same_request(status: int) -> None:
    moved = Moved(status, body=ending("chat", "length"))
    with serving(moved) as host:
        assert ask(host, times=3) == ["abab"] * 3
    assert {key for _, _, key in moved.got} == {f"Bearer {KEY}"}
    path = "/v1/chat/completions"
    # What has moved for good is asked at once the next time, so that only the first answer waits for the redirect.
    expected = [path, *[f"{NEW}{path}"] * 3] if status in (301, 308) else [path, f"{NEW}{path}"] * 3
    assert moved.posts == expected


def test_a_redirect_to_another_port_of_the_host_is_followed() -> None:
    there = Moved(307, body=ending("chat", "length"))
    with (
        serving(there) as host,
        serving(Moved(307, lambda path: f"http://{host}{NEW}{path}")) as first,
    ):
        assert ask(first) == ["abab"]
    assert there.posts == [f"{NEW}/v1/chat/completions"]


REFUSED = {
    "another host": (
        307,
        "http://elsewhere.invalid:8000/v1?key=secret",
        "http://elsewhere.invalid:8000/v1?... on another host",
    ),
    "with a password": (
        302,
        "http://user:secret@elsewhere.invalid/x",
        "redirects to http://elsewhere.invalid/x on another",
    ),
    "another protocol": (
        308,
        "https://127.0.0.1/v1",
        "redirects to https://127.0.0.1/v1 with another protocol: give",
    ),
    "a page": (303, "/login", "/login, which holds no answer to a request"),
    "a circle": (307, "/again", "/again after 5 other redirects"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_any_other_redirect_is_named_with_its_target(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, target, words = REFUSED[case]
    monkeypatch.setenv("SKIT_API_KEY", KEY)
    lines = []
    with serving(Moved(status, lambda _: target)) as host:
        with pytest.raises(SkitError) as refused:
            ask(host)
        lines.append(str(refused.value))
        adapter = engines.get("completions")(f"http://{host}")
        with pytest.raises(SkitError) as refused:
            adapter.model()
        lines.append(str(refused.value))
        with pytest.raises(SkitError) as refused:
            list(adapter.generate(GenerationRequest([1], 2, Sampler(), 0)))
        lines.append(str(refused.value))
    for line in lines:
        assert f"answered {status} and redirects to" in line
        assert words in line
        assert "secret" not in line
        assert KEY not in line
        assert len(line.splitlines()) == 1


def test_a_request_that_is_redirected_elsewhere_is_not_sent_again() -> None:
    async def asked(host: str) -> None:
        client = StreamClient(parse_server(f"it=chat://{host}"), KEY)
        try:
            await client.ask(GENERATION)
        finally:
            await client.close()

    moved = Moved(307, lambda _: "http://other.invalid/v1")
    with (
        serving(moved) as host,
        pytest.raises(RequestFailedError, match="answered 307 and redirects"),
    ):
        asyncio.run(asked(host))
    assert len(moved.posts) == 1


def test_a_redirect_to_no_address_is_one_line() -> None:
    with (
        serving(Moved(307, lambda _: "http://127.0.0.1:none/")) as host,
        pytest.raises(SkitError, match="Invalid URL in location"),
    ):
        ask(host)


def test_engines_follow_redirects_too() -> None:
    stream = events({"choices": [{"index": 0, "text": "a", "token_ids": [3, 4]}]})
    with serving(Moved(307, body=stream)) as host:
        adapter = engines.get("completions")(f"http://{host}")
        assert adapter.model()[0] == "tiny"
        assert list(adapter.generate(GenerationRequest([1], 2, Sampler(), 0))) == [[3, 4]]
