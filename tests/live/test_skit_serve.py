"""The commands on both ends of the wire."""

from pathlib import Path
from signal import SIGKILL

import psutil
import pytest
from command_line import TinyPair, environment, error_line, read_object, read_rows, skit, skit_here, write_rows
from live_server import serving
from warm_start import warm_start

from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.run import make_service
from specbench_kit.live.server.settings import ServeSettings


def test_a_benchmark_whose_target_is_on_a_server(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2)))
    options = ("--dataset", prompts, "--max-new-tokens", 12, "--out", tmp_path / "out", "--draft", tiny.draft)
    service, facts = make_service(
        ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64)
    )
    assert facts["tls"] is False
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, "--method", "fixed-k", *options, "--link", "rtt_s=0.001")
        refused = skit_here("bench", "--server", address, "--method", "specpipe", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*-fixed-k-*")
    run, summary = (read_object(folder / f"{name}.json") for name in ("run", "summary"))
    assert summary["lossless"]["identical"] == 2
    assert (run["server"]["scheduler"], run["shaped_link"]["rtt_s"]) == ("fcfs", 0.001)
    assert "SHAPED LINK" in (folder / "report.md").read_text(encoding="utf-8")
    assert "cannot be behind a wire" in error_line(refused)


def test_methods_that_draft_without_a_model_need_none_on_the_device(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2)))
    options = ("--dataset", prompts, "--max-new-tokens", 12, "--out", tmp_path / "out", "--draft", tiny.draft)
    service, _ = make_service(ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64))
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, "--method", "suffix", *options)
        refused = skit_here("bench", "--server", address, "--method", "goodput", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert read_object(folder / "summary.json")["lossless"]["identical"] == 2
    assert list(read_object(folder / "run.json")["models"]) == ["target"]
    assert "this machine cannot time a target on a server" in error_line(refused)


def test_an_edge_that_is_killed_between_a_verdict_and_its_arrival_goes_on_where_it_was(
    tiny: TinyPair, tmp_path: Path
) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(3)))
    options = ("--dataset", prompts, "--max-new-tokens", 12, "--out", tmp_path / "out", "--draft", tiny.draft)
    service, *_ = make_service(ServeSettings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64))
    with serving(service) as (_, address):
        command = ("bench", "--server", address, "--method", "fixed-k", *options)
        deliver = service.handler.batch_runner.deliver

        def kill_the_edge(done: list[VerifiedRound]) -> None:
            if any(read_rows(path) for path in (tmp_path / "out").glob("*-fixed-k-*/requests.jsonl")):
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
        (("--link", "rtt_s=0.1"), "--link, --server-token and --server-ca go with --server"),
        (("--server", "127.0.0.1:1", "--deployment", "wan"), "leave out --deployment and --launch"),
        (("--server", "127.0.0.1:1", "--link", "rtt_s=-1"), "times are 0 or more seconds"),
    ],
)
def test_options_that_do_not_go_together(option: tuple[str, ...], reason: str) -> None:
    assert reason in error_line(skit_here("bench", "--method", "fixed-k", *option))
