"""A verification server on an emulated card, and devices that call it."""

from pathlib import Path

import pytest
from command_line import TinyPair, read_object, skit_here
from emulated_card import Machine
from live_server import serving

from specbench_kit.live.server.run import make_service
from specbench_kit.live.server.settings import ServeSettings


@pytest.mark.parametrize(
    ("device", "method", "temperature"),
    [("cuda:1", "fixed-k", 0), ("cpu", "specedge", 0), ("cuda", "fixed-k", 0.7)],
)
def test_a_benchmark_whose_target_is_on_a_card_of_a_server(
    device: str,
    method: str,
    temperature: float,
    tiny: TinyPair,
    prompts: Path,
    tmp_path: Path,
    machine: Machine,
) -> None:
    settings = ServeSettings(
        target=str(tiny.target),
        listen="127.0.0.1:0",
        slots=4,
        session_tokens=64,
        device="cuda",
        dtype="float32",
    )
    service, _ = make_service(settings)
    options = [
        "--dataset",
        prompts,
        "--max-new-tokens",
        8,
        "--out",
        tmp_path,
        "--draft",
        tiny.draft,
    ]
    at_device = [
        "--method",
        method,
        "--temperature",
        temperature,
        "--device",
        device,
        "--dtype",
        "float32",
    ]
    with serving(service) as (_, address):
        done = skit_here("bench", "--server", address, *at_device, *options)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob(f"*-{method}-*")
    if temperature == 0:
        assert read_object(folder / "summary.json")["lossless"]["identical"] == 2
    assert machine.cards[0].peak_bytes > 0
    assert (machine.cards[1].peak_bytes > 0) == (device == "cuda:1")


def test_a_server_that_drafts_by_itself(
    tiny: TinyPair, prompts: Path, tmp_path: Path, machine: Machine
) -> None:
    service, _ = make_service(
        ServeSettings(
            target=str(tiny.target),
            draft=str(tiny.draft),
            listen="127.0.0.1:0",
            slots=4,
            session_tokens=64,
            methods=("fixed-k:k=3",),
            device="cuda:1",
            dtype="float32",
        )
    )
    options = [
        "--dataset",
        prompts,
        "--max-new-tokens",
        8,
        "--out",
        tmp_path,
        "--draft",
        tiny.draft,
    ]
    with serving(service) as (_, address):
        done = skit_here(
            "bench", "--server", address, "--method", "fixed-k:k=3", "--dtype", "float32", *options
        )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("*-fixed-k-*")
    assert read_object(folder / "run.json")["server_only"]["identical"] == 2
    assert machine.cards[1].peak_bytes > 0
