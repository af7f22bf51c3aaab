"""What a search for capacity raises: the devices of a closed loop, or the rate of arrivals that come by themselves."""

from dataclasses import replace

from specbench_kit.serving.scenario import Scenario

DEVICES, RATE = "devices", "requests/s"
RATE_STEP = 0.01
"""Requests per second in one step of a search over rates."""
OPEN_DEVICES = 1024
"""Where arrivals come by themselves: so many that hardly a request waits for its device."""


def unit(scenario: Scenario) -> str:
    """In what the capacity of a scenario is told: with arrivals of their own, devices carry no load."""
    return RATE if scenario.arrivals.is_open else DEVICES


def loaded(scenario: Scenario, step: int) -> Scenario:
    """The scenario at a step of the search."""
    if not scenario.arrivals.is_open:
        return replace(scenario, devices=step)
    return replace(scenario, devices=OPEN_DEVICES, arrivals=scenario.arrivals.at_rate(step * RATE_STEP))


def load_of(scenario: Scenario, step: int) -> float:
    """A step in the scenario's unit."""
    return round(step * RATE_STEP, 6) if scenario.arrivals.is_open else step
