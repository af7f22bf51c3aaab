"""The commands on both ends of the wire."""

from pathlib import Path

import pytest
from command_line import TinyPair, error_line, read_object, skit_here, write_rows
from live_server import serving

from specbench_kit.live.server.run import make
from specbench_kit.live.server.settings import Settings


def test_a_benchmark_whose_target_is_on_a_server(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(2)))
    asked = ("--dataset", prompts, "--max-new-tokens", 12, "--out", tmp_path / "out", "--draft", tiny.draft)
    service, _, told = make(Settings(target=str(tiny.target), listen="127.0.0.1:0", slots=4, session_tokens=64))
    assert told["tls"] is False
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, "--method", "fixed-k", *asked, "--link", "rtt_s=0.001")
        refused = skit_here("bench", "--server", address, "--method", "specpipe", *asked)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*-fixed-k-*")
    run, summary = (read_object(folder / f"{name}.json") for name in ("run", "summary"))
    assert summary["lossless"]["identical"] == 2
    assert (run["server"]["scheduler"], run["shaped_link"]["rtt_s"]) == ("fcfs", 0.001)
    assert "SHAPED LINK" in (folder / "report.md").read_text(encoding="utf-8")
    assert "cannot be behind a wire" in error_line(refused)


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
