"""The load that a search for capacity raises: devices of a closed loop, or the rate of an open arrival process."""

from dataclasses import replace

from specbench_kit.serving.scenario import Scenario

DEVICES, RATE = "devices", "requests/s"
RATE_STEP = 0.01
"""Requests per second in one step of a search over rates."""
OPEN_DEVICES = 1024
"""Devices of an open arrival process: so many that hardly a request waits for its device."""


def load_unit(scenario: Scenario) -> str:
    """Return the unit of a scenario's capacity."""
    return RATE if scenario.arrivals.is_open else DEVICES


def at_load(scenario: Scenario, step: int) -> Scenario:
    """Return the scenario at a step of the search."""
    if not scenario.arrivals.is_open:
        return replace(scenario, devices=step)
    return replace(scenario, devices=OPEN_DEVICES, arrivals=scenario.arrivals.at_rate(step * RATE_STEP))


def load_of(scenario: Scenario, step: int) -> float:
    """Return the load of a step in the scenario's unit."""
    return round(step * RATE_STEP, 6) if scenario.arrivals.is_open else step
