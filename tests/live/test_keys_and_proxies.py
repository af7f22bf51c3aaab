"""The environment of real machines: proxies that lead elsewhere, and keys as files and shells hold them."""

import asyncio
from pathlib import Path

import pytest
from live_server import CALLER, serving
from streaming_server import streaming_server
from test_odd_servers import KEY, ResponseScript
from test_odd_servers import serving as following

from specbench_kit.core.addresses import is_loopback
from specbench_kit.core.errors import SkitError
from specbench_kit.live.connection import Connection
from specbench_kit.live.connection_options import ConnectionOptions
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.base import ServerFacts, engines
from specbench_kit.live.engines.client import StreamClient
from specbench_kit.live.engines.http import api_key, proxy_of
from specbench_kit.live.server_address import ServerAddress

NOWHERE = "http://user:secret@127.0.0.1:9"
ELSEWHERE = "http://host.invalid:8000"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *map(str.upper, VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SKIT_API_KEY", raising=False)


def facts(address: str) -> ServerFacts:
    async def described() -> ServerFacts:
        client = StreamClient(parse_server(f"it={address}"))
        try:
            return await client.facts()
        finally:
            await client.close()

    return asyncio.run(described())


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_server_on_this_machine_is_never_asked_through_a_proxy(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, NOWHERE)
    with streaming_server() as (host, _):
        assert facts(f"vllm://{host}").model == "tiny"
        assert facts(f"vllm://localhost:{host.partition(':')[2]}").model == "tiny"
        assert engines.get("completions")(f"http://{host}").model()[0] == "tiny"
    with serving() as (_, address):
        assert Connection(address, CALLER).welcome.model == "tiny"


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "[::1]", "0.0.0.0", "::"]
)
def test_the_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)


def test_any_other_server_is_asked_through_the_proxy_and_errors_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert proxy_of(ELSEWHERE) is None
    with following(ResponseScript(facts=False)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@{proxy}")
        for ask in (
            lambda: facts("vllm://host.invalid:8000"),
            engines.get("completions")(ELSEWHERE).model,
        ):
            with pytest.raises(
                SkitError, match=r"answered 404.*\(through the proxy that HTTP_PROXY names\)"
            ) as error:
                ask()
            assert "secret" not in str(error.value)
    with pytest.raises(SkitError, match=r"\(through the proxy that HTTP_PROXY names\)") as error:
        facts("vllm://host.invalid:8000")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("socks://user:secret@host:1080", "names a proxy of the kind socks://"),
        (
            "socks5://user:secret@host:1080",
            "names a SOCKS proxy, which needs a package: pip install socksio",
        ),
        ("http://", "names no proxy"),
        ("http://user:secret@[::1", "names no proxy"),
        ("http://user:secret@host:port", "names no proxy"),
        ("::::secret", "names no proxy"),
        ("http://user:secret@host:99999", "names no proxy"),
    ],
)
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_a_proxy_that_cannot_be_used_is_one_line_that_names_its_variable(
    value: str, words: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench_kit.live.engines.http.find_spec", lambda _: None)
    monkeypatch.setenv(variable, value)
    for ask in (lambda: facts("vllm://host.invalid:8000"), lambda: engines.get("vllm")(ELSEWHERE)):
        with pytest.raises(
            SkitError, match=f"the environment variable {variable} {words}"
        ) as error:
            ask()
        assert "secret" not in str(error.value)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("exceptions", "host", "is_excepted"),
    [
        ("host.invalid", "host.invalid", True),
        ("invalid,[::1]", "host.invalid", True),
        (".invalid , ::1", "host.invalid", True),
        ("*.invalid", "host.invalid", True),
        ("host.invalid:8000", "host.invalid", True),
        ("*", "host.invalid", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("2001:db8::/32", "[2001:db8::7]", True),
        ("[2001:db8::7]:80", "[2001:db8::7]", True),
        ("ost.invalid,[::1", "host.invalid", False),
        ("10.0.0.0/8", "host.invalid", False),
        ("", "host.invalid", False),
    ],
)
def test_no_proxy_excepts_hosts_domains_and_networks(
    exceptions: str, host: str, is_excepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", exceptions)
    proxy = proxy_of(f"http://{host}:8000")
    assert (proxy is None) is is_excepted
    assert proxy is None or proxy == ("http://proxy.invalid:3128", "HTTP_PROXY")


def test_blanks_around_a_key_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIT_API_KEY", f"\n {KEY}\r\n")
    assert api_key() == api_key("any") == KEY
    monkeypatch.setenv("SKIT_API_KEY_MY_SPEC", "other\n")
    assert (api_key("my-spec"), api_key("plain")) == ("other", KEY)


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY}\x07", f"“{KEY}”", f"clé-{KEY}"])
def test_a_key_that_no_request_can_carry_is_one_line_without_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_API_KEY", key)
    for read in (api_key, lambda: engines.get("completions")("http://127.0.0.1:9")):
        with pytest.raises(
            SkitError, match="the environment variable SKIT_API_KEY holds a"
        ) as error:
            read()
        assert KEY not in str(error.value)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "address",
    [
        f"it=vllm://user:{KEY}@host:1",
        f"it=vllm://host:1?key={KEY}",
        f"vllm://host:1?key={KEY}",
        f"it=//user:{KEY}@:",
    ],
)
def test_an_address_with_a_key_is_refused_without_it(address: str) -> None:
    with pytest.raises(SkitError) as error:
        parse_server(address)
    assert KEY not in str(error.value)


@pytest.mark.parametrize("engine", list(engines.all()))
def test_engines_take_no_key_in_their_address(engine: str) -> None:
    with pytest.raises(SkitError, match="leave user and password out of the address") as error:
        engines.get(engine)(f"http://user:{KEY}@host:1")
    assert KEY not in str(error.value)


def test_a_file_of_a_token_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe" + KEY.encode())
    with pytest.raises(SkitError, match="holds no text") as error:
        ServerAddress("127.0.0.1:9", ConnectionOptions(server_token=file)).connect()
    assert KEY not in str(error.value)
