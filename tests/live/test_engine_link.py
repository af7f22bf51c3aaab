"""An emulated link in front of another engine, and what such an engine refuses before a run folder exists."""

from pathlib import Path

import engine_server as stand_in
import httpx
import pytest
from command_line import TinyPair, error_line, read_object, read_rows, skit_here, write_rows
from engine_server import engine_server
from live_server import CAPACITY, VOCABULARY, decode_here, draft_runner, run
from tiny_models import GREEDY, make_requests, outputs, random_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.live.assembly import remote_loop, streamed_loop
from specbench_kit.live.engines import base as base_module
from specbench_kit.live.engines.base import engines
from specbench_kit.live.engines.http import ShapedTransport
from specbench_kit.live.pair import TargetDescription
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.servers import EngineServer, VerifierSetup
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link

RTT_S = 0.04
LINK = Link(rtt_s=RTT_S)
REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 7)
TINY = TargetDescription("tiny", "unknown", "unknown", VOCABULARY, CAPACITY, (), bitwise=False)


def served(base: str, engine: str, link: Link = LINK) -> EngineServer:
    adapter = engines.get(engine)(base)
    adapter.emulate_link(link)
    return EngineServer(ServerAddress(f"{engine}://", link=link), adapter, TINY)


def decode_over(server: EngineServer, spec: str, batch_size: int = 1) -> dict[str, RequestRecord]:
    loop = remote_loop(
        parse_method(spec),
        {"draft": draft_runner(batch_size)},
        lambda clock: server.verifier(VerifierSetup(GREEDY, 0, clock)),
        DecodingSetup(batch_size=batch_size, capacity=CAPACITY),
    )
    return run(loop, REQUESTS)


@pytest.mark.parametrize("engine", ["vllm", "completions", "llama-cpp", "sglang"])
def test_every_round_crosses_the_link_and_says_so(engine: str) -> None:
    with engine_server() as base:
        server = served(base, engine)
        records = decode_over(server, "fixed-k:k=3")
        assert server.describe().shaped_link["rtt_s"] == RTT_S
    assert outputs(records) == outputs(decode_here(parse_method("fixed-k:k=3"), REQUESTS))
    for record in records.values():
        assert all(step.link_s >= RTT_S for step in record.rounds)
        assert all(step.verify_s > 0 for step in record.rounds)


def test_requests_of_a_batch_cross_the_link_together() -> None:
    with engine_server() as base:
        records = decode_over(served(base, "vllm"), "fixed-k:k=3", batch_size=2)
    for record in records.values():  # the shares of two requests in one crossing
        assert all(step.link_s >= RTT_S / 2 for step in record.rounds)
    assert outputs(records) == outputs(decode_here(parse_method("fixed-k:k=3"), REQUESTS))


def test_a_method_that_drafts_while_it_waits_works_over_the_link() -> None:
    spec = "specedge:tree=chain,depth=3"
    with engine_server() as base:
        records = decode_over(served(base, "completions"), spec)
    assert outputs(records) == outputs(decode_here(parse_method(spec), REQUESTS))
    assert sum(step.proactive for record in records.values() for step in record.rounds) > 0


class CountingTransport(ShapedTransport):
    """Counts the requests that cross the link."""

    count = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.count += 1
        return super().handle_request(request)


def test_a_streamed_response_crosses_the_link_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_module, "ShapedTransport", CountingTransport)
    with engine_server() as base:
        server = served(base, "sglang")
        stream = server.stream(GREEDY, 0)
        records = run(
            streamed_loop(stream, DecodingSetup(batch_size=2, capacity=CAPACITY)), REQUESTS
        )
        assert isinstance(server.engine.link, CountingTransport)
        assert server.engine.link.count == len(REQUESTS)
    assert outputs(records) == outputs(decode_here(parse_method("autoregressive"), REQUESTS))
    assert all(record.rounds[0].end_s >= RTT_S for record in records.values())


def test_bodies_take_their_time_and_errors_arrive_too() -> None:
    with engine_server() as base:
        transport = ShapedTransport(Link(up_bytes_per_s=1e5, down_bytes_per_s=1e5))
        with httpx.Client(base_url=base, transport=transport) as client:
            sent = {"prompt": [[1, 2, 3]], "temperature": 0.0, "filler": "x" * 5000}
            answer = client.post("/v1/completions", json=sent)
            assert answer.elapsed.total_seconds() > 0.05
            assert len(answer.json()["choices"]) == 1
            assert client.get("/nothing").status_code == 404
        assert transport.take_server_s() > 0
        assert transport.take_server_s() == 0
    with httpx.Client(transport=ShapedTransport(LINK)) as client, pytest.raises(httpx.ConnectError):
        client.get("http://127.0.0.1:9/")


REFUSED = [
    (("--method", "specedge"), "specedge: completions://"),
    (("--method", "specinfer:branching=2-1"), "verifies chains alone, and it submits trees"),
    (("--method", "fixed-k", "--temperature", ".8"), "fixed-k: completions://"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED)
def test_what_an_engine_cannot_verify_is_refused_before_there_is_a_run(
    tiny: TinyPair, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", {"id": "0", "prompt": "Say 0."})
    with engine_server() as base:
        server = (
            "--server",
            base.replace("http", "completions"),
            "--draft",
            tiny.draft,
            "--target",
            tiny.target,
        )
        done = skit_here(
            "bench", *server, "--dataset", prompts, *options, "--out", tmp_path / "out"
        )
    assert reason in error_line(done)
    assert not (tmp_path / "out").exists()


def test_methods_that_an_engine_cannot_verify_are_left_out_of_groups(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "TARGET", AutoModelForCausalLM.from_pretrained(tiny.target))
    prompts = write_rows(tmp_path / "prompts.jsonl", {"id": "0", "prompt": "Say 0."})
    with engine_server() as base:
        server = (
            "--server",
            base.replace("http", "completions"),
            "--draft",
            tiny.draft,
            "--target",
            tiny.target,
        )
        groups = (
            "--method",
            "group:tree",
            "--method",
            "group:overlapping",
            "--method",
            "round-trips",
        )
        options = (*server, "--dataset", prompts, "--max-new-tokens", 6)
        done = skit_here("bench", *options, *groups, "--out", tmp_path / "out")
        sampled = skit_here(
            "bench",
            *options,
            "--method",
            "suffix",
            "--temperature",
            ".8",
            "--out",
            tmp_path / "drawn",
        )
    assert (done.returncode, sampled.returncode) == (0, 0), (done.stderr, sampled.stderr)
    (folder,) = (tmp_path / "out").glob("*-ssd-*")
    assert read_object(folder / "summary.json")["lossless"]["identical"] == 1
    left_out = read_object(folder / "run.json")["left_out"]
    assert (
        len({left_out[name] for name in ("eagle2-tree", "opt-tree", "specedge", "specinfer")}) == 1
    )
    assert "a pipeline's stages cannot be behind a wire" in left_out["specpipe"]
    (folder,) = (tmp_path / "drawn").glob("*-suffix-*")
    assert "decodes by itself by other random numbers" in (folder / "report.md").read_text(
        encoding="utf-8"
    )


def test_a_benchmark_at_an_engine_over_an_emulated_link(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "TARGET", AutoModelForCausalLM.from_pretrained(tiny.target))
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    monkeypatch.setitem(
        stand_in.ROUTES,
        "/tokenize",
        lambda body: {"tokens": tokenizer.encode(body["prompt"], add_special_tokens=False)},
    )
    monkeypatch.delitem(stand_in.ROUTES, "/inference/v1/generate")
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2))
    )
    with engine_server() as base:
        server = (
            "--server",
            base.replace("http", "vllm"),
            "--draft",
            tiny.draft,
            "--target",
            tiny.target,
        )
        options = ("--method", "fixed-k", "--link", "rtt_s=0.02", "--max-new-tokens", 6)
        done = skit_here(
            "bench", *server, "--dataset", prompts, *options, "--out", tmp_path / "out"
        )
    assert done.returncode == 0, done.stderr
    assert "verifies by a token after every prefix of the draft" in " ".join(
        (done.stdout + done.stderr).split()
    )
    (folder,) = (tmp_path / "out").glob("*-fixed-k-*")
    run, summary = (read_object(folder / f"{name}.json") for name in ("run", "summary"))
    assert summary["lossless"]["identical"] == 2
    assert run["server"] == {"kind": "vllm", "baseline": "streamed"}
    assert run["verification"].startswith("by a token after every prefix")
    assert run["shaped_link"]["rtt_s"] == 0.02
    assert "SHAPED LINK" in (folder / "report.md").read_text(encoding="utf-8")
    assert len(read_rows(folder / "requests.jsonl")) == 2
