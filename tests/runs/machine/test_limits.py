"""When a machine counts as disturbed."""

from typing import Any

import pytest

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.runs.machine.limits import disturbances, read_machine


def block(
    cpu_share: float | None = 0.97, steal: float | None = 0.01, spread: float | None = 1.3
) -> JsonObject:
    """Return the readings of one process that decoded two lanes."""
    quiet = {"cpu_share": 0.99, "spread": 1.0}
    lanes = {"autoregressive": quiet, "wisp": {"cpu_share": cpu_share, "spread": spread}}
    return {"lanes": lanes, "steal": steal, "load": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("readings", "lines"),
    [
        ({}, []),
        ({"cpu_share": 0.9, "steal": 0.02, "spread": 2.0}, []),
        ({"cpu_share": None, "steal": None, "spread": None}, []),
        ({"cpu_share": 0.89}, ["wisp had a processor for 89% of its time (at least 90%)"]),
        ({"steal": 0.021}, ["the host withheld 2.1% of the processor time (at most 2%)"]),
        ({"spread": 2.1}, ["the same step of wisp took up to 2.1 times as long (at most 2)"]),
        ({"spread": 421.3}, ["the same step of wisp took up to 421 times as long (at most 2)"]),
    ],
)
def test_each_limit_stands_for_itself(readings: dict[str, Any], lines: list[str]) -> None:
    assert disturbances(read_machine([block(**readings)])) == lines


def test_the_worst_of_all_processes_counts() -> None:
    lines = disturbances(
        read_machine([block(), block(cpu_share=0.04, steal=0.5, spread=6.0), block(cpu_share=0.5)])
    )
    assert [line.split()[:6] for line in lines] == [
        ["wisp", "had", "a", "processor", "for", "4%"],
        ["the", "host", "withheld", "50.0%", "of", "the"],
        ["the", "same", "step", "of", "wisp", "took"],
    ]
    assert disturbances([]) == []
