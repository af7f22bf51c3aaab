"""The commands on both ends of the wire."""

from pathlib import Path
from signal import SIGKILL
from threading import Event

import psutil
import pytest
from command_line import (
    TinyPair,
    environment,
    error_line,
    read_object,
    read_rows,
    skit,
    skit_here,
    write_rows,
)
from live_server import serving
from warm_start import warm_start

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.run import make_service
from specbench_kit.live.server.settings import ServeSettings


def test_a_benchmark_whose_target_is_on_a_server(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2))
    )
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        12,
        "--out",
        tmp_path / "out",
        "--draft",
        tiny.draft,
    )
    service, facts = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    assert facts["tls"] is False
    with serving(service) as (_, address):
        done = skit_here(
            "bench", "--server", address, "--method", "fixed-k", *options, "--link", "rtt_s=0.001"
        )
        refused = skit_here("bench", "--server", address, "--method", "specpipe", *options)
        decoupled = ("bench", "--server", address, "--method", "decoupled:k=2")
        ahead = skit_here(*decoupled, *options, "--link", "rtt_s=0.002")
        silent = skit_here(*decoupled, *options, "--server-silence", 1)
        flooding = skit_here(
            "bench", "--server", address, "--method", "decoupled:k=2,in_flight=99", *options
        )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*-fixed-k-*")
    run, summary = (read_object(folder / f"{name}.json") for name in ("run", "summary"))
    assert summary["lossless"]["identical"] == 2
    assert (run["server"]["scheduler"], run["shaped_link"]["rtt_s"]) == ("fcfs", 0.001)
    assert "SHAPED LINK" in (folder / "report.md").read_text(encoding="utf-8")
    assert "cannot be behind a wire" in error_line(refused)
    assert ahead.returncode == 0, ahead.stderr
    (folder,) = (tmp_path / "out").glob("*-decoupled-*")
    summary = read_object(folder / "summary.json")
    assert summary["lossless"]["identical"] == 2
    assert summary["overall"]["draft_bytes"] > 0
    assert "the server never waits for its drafts: leave out --server-silence" in error_line(silent)
    assert "takes 16 drafts ahead of their verdicts: give in_flight=16 or less" in error_line(
        flooding
    )


@pytest.mark.parametrize("more", [(), ("--temperature", 0.7), ("--no-skip-forced",)])
def test_a_benchmark_under_a_grammar_writes_what_it_writes_in_one_process(
    more: tuple[object, ...], tiny: TinyPair, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance")
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2))
    )
    options = ("--dataset", prompts, "--max-new-tokens", 24, *more)
    models = ("--draft", tiny.draft, "--device", "cpu", "--method", "fixed-k", "--method", "suffix")
    grammar = ("--constraint", "regex:a[bc]{2}dcba[cd]{3}bbd")
    settings = ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", session_tokens=96)
    service, _ = make_service(settings)
    with serving(service) as (_, address):
        there = ("bench", "--server", address, *models, *options, "--out", tmp_path / "there")
        served = skit_here(*there, *grammar)
        refused = skit_here(*there, "--constraint", "regex:" + "a" * (1 << 16))
    here = ("bench", "--target", tiny.target, *models, *options, "--out", tmp_path / "here")
    alone = skit_here(*here, *grammar)
    assert served.returncode == alone.returncode == 0, served.stderr + alone.stderr
    says = f"--constraint: {address} takes grammars of at most 65536 bytes, and this one has 65542"
    assert error_line(refused).startswith(says)
    for method in ("fixed-k", "suffix"):
        folders = [next((tmp_path / place).glob(f"*-{method}-*")) for place in ("there", "here")]
        for name in ("requests.jsonl", "baseline.jsonl"):
            rows, same = (read_rows(folder / name) for folder in folders)
            assert [under_grammar(row) for row in rows] == [under_grammar(row) for row in same]
            assert {row["grammar"] for row in rows} == {"valid"}
        run, summary = (read_object(folders[0] / f"{name}.json") for name in ("run", "summary"))
        assert run["config"]["constraint"] == grammar[1]
        assert summary["overall"]["valid_share"] == 1.0
        if not more or more[0] != "--temperature":
            assert summary["lossless"]["identical"] == 2


def under_grammar(row: JsonObject) -> list[object]:
    """Return what a row says of its grammar, without the times."""
    names = ("submitted", "accepted", "committed", "forced", "forbidden")
    names += ("forced_submitted", "forced_accepted")
    rounds = [[step.get(name) for name in names] for step in row["rounds"]]
    return [row["output_ids"], row["grammar"], row.get("forced_first"), rounds]


def test_methods_that_cannot_have_their_target_on_a_server_are_left_out_of_groups(
    tiny: TinyPair, tmp_path: Path
) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", {"id": "0", "prompt": "Say it."})
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        6,
        "--out",
        tmp_path / "out",
        "--draft",
        tiny.draft,
    )
    service, _ = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, "--method", "group:bounds", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*-oracle-*")
    left_out = read_object(folder / "run.json")["left_out"]
    assert left_out.keys() == {"layer-split", "pipeline-ar", "pp-microbatch", "reachable"}
    assert "a pipeline's stages cannot be behind a wire" in left_out["pipeline-ar"]


def test_methods_that_draft_without_a_model_need_none_on_the_device(
    tiny: TinyPair, tmp_path: Path
) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2))
    )
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        12,
        "--out",
        tmp_path / "out",
        "--draft",
        tiny.draft,
    )
    service, _ = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, "--method", "suffix", *options)
        refused = skit_here("bench", "--server", address, "--method", "goodput", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert read_object(folder / "summary.json")["lossless"]["identical"] == 2
    assert list(read_object(folder / "run.json")["models"]) == ["target"]
    assert "this machine cannot time a target on a server" in error_line(refused)


def test_a_benchmark_beside_the_server_that_drafts_by_itself(
    tiny: TinyPair, tmp_path: Path
) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(3))
    )
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        12,
        "--out",
        tmp_path / "out",
        "--draft",
        tiny.draft,
    )
    methods = ("--method", "fixed-k:k=3", "--method", "round-trips")
    serve = {"listen": "127.0.0.1:0", "slots": 4, "session_tokens": 64, "methods": ("fixed-k:k=3",)}
    service, _ = make_service(
        ServeSettings(target=str(tiny.target), draft=str(tiny.draft), **serve)
    )
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, *methods, *options, "--link", "rtt_s=0.02")
    assert done.returncode == 0, done.stderr
    fixed_k, round_trips = (
        next((tmp_path / "out").glob(f"*-{name}-*")) for name in ("fixed-k-k-3", "round-trips")
    )
    plain, by_round_trip = (
        read_rows(fixed_k / "baseline.jsonl"),
        read_rows(round_trips / "requests.jsonl"),
    )
    # Streamed, the link counts once for 12 tokens; token by token it counts twelve times.
    for streamed, by_token in zip(plain, by_round_trip, strict=True):
        assert streamed["output_ids"] == by_token["output_ids"]
        assert sum(step["link_s"] for step in streamed["rounds"]) < 0.5 * sum(
            step["link_s"] for step in by_token["rounds"]
        )
    run, summary = (read_object(fixed_k / f"{name}.json") for name in ("run", "summary"))
    assert (run["server"]["baseline"], run["server_only"]) == (
        "streamed",
        {"compared": 3, "identical": 3},
    )
    assert all(row["colocated_s"] > 0 for row in read_rows(fixed_k / "requests.jsonl"))
    assert {"colocated_ratio", "colocated_speedup", "capacity_factor"} <= summary["overall"].keys()
    assert read_object(round_trips / "summary.json")["overall"]["colocated_ratio"] is None
    report = (fixed_k / "report.md").read_text(encoding="utf-8")
    assert "the speed of autoregressive decoding at the server, streamed" in report
    assert "## Edge or server-only" in report


def test_an_edge_that_is_killed_between_a_verdict_and_its_arrival_goes_on_where_it_was(
    tiny: TinyPair, tmp_path: Path
) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(3))
    )
    options = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        12,
        "--out",
        tmp_path / "out",
        "--draft",
        tiny.draft,
    )
    service, *_ = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    with serving(service) as (_, address):
        command = ("bench", "--server", address, "--method", "fixed-k", *options)
        deliver = service.handler.batch_runner.deliver

        killed = Event()

        def kill_the_edge(done: list[VerifiedRound]) -> None:
            # Once: a round of the edge that died may be delivered when the next one has begun.
            if not killed.is_set() and any(
                read_rows(path) for path in (tmp_path / "out").glob("*-fixed-k-*/requests.jsonl")
            ):
                killed.set()
                # A response that is streamed goes on for a moment after the edge has died.
                for edge in psutil.Process(warm_start(environment()).process.pid).children():
                    edge.kill()
            deliver(done)

        service.handler.batch_runner.deliver = kill_the_edge
        assert skit(*command).returncode == -SIGKILL
        service.handler.batch_runner.deliver = deliver
        (folder,) = (tmp_path / "out").glob("*-fixed-k-*")
        before = read_rows(folder / "requests.jsonl")
        resumed = skit(*command, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    after = read_rows(folder / "requests.jsonl")
    assert after[: len(before)] == before
    assert sorted(row["request_id"] for row in after) == ["0", "1", "2"]
    assert read_object(folder / "summary.json")["lossless"]["identical"] == 3


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (
            ("--link", "rtt_s=0.1"),
            "--link and the options that begin with --server go with --server",
        ),
        (
            ("--server", "127.0.0.1:1", "--deployment", "wan"),
            "--server cannot go with --deployment",
        ),
        (("--server", "127.0.0.1:1", "--link", "rtt_s=-1"), "times are 0 or more seconds"),
        (("--server-silence", "1"), "options that begin with --server go with --server"),
        (
            ("--server", "127.0.0.1:1", "--server-silence", "0.001"),
            "--server-silence is 0 or from 0.05 to 3600 s",
        ),
        (
            ("--server", "127.0.0.1:1", "--temperature", "1e-3"),
            "a skit serve takes a --temperature of 0 or from 0.01",
        ),
        (
            ("--server", "vllm://127.0.0.1:1", "--server-silence", "1"),
            "are for a skit serve: leave them out for an",
        ),
    ],
)
def test_options_that_do_not_go_together(option: tuple[str, ...], reason: str) -> None:
    assert reason in error_line(skit_here("bench", "--method", "fixed-k", *option))
