"""Every option of every method moves a simulation whose rates are stated, or is refused there."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, replace
from typing import get_args, get_type_hints

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import drafters
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.planning.candidates import Market
from specbench_kit.studies.planning.options import PlanOptions
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import ServingSettings

NOTHING = RecordingSettings()
PLACES = {"wisp-cache": "wan", "adaspec": "vllm-rtx4090"}
"""A system that drafts on devices and one that drafts on the server, each with a deployment."""


def scenario(method: str, system: str) -> Scenario:
    settings = ServingSettings(
        method=(method,),
        acceptance=("iid:alpha=0.8,length=8,spread=0.5",),
        deployment=(PLACES[system],),
        system=(system,),
        prompt_tokens="100",
        output_tokens="50",
        duration_s=20.0,
        warmup_s=0.0,
        devices=(5,),
        recording=NOTHING,
    )
    (point,) = settings.points()
    return ScenarioBuilder(settings).scenario(point)


def others(kind: type, option: "Field[object]") -> Iterator[object]:
    """Values that an option does not have by itself."""
    hint = get_type_hints(kind)[option.name]
    default = None if option.default is MISSING else option.default
    if isinstance(default, bool):
        yield not default
    elif isinstance(default, int):
        yield from (value for value in (1, 2, 7, 16) if value != default)
    elif isinstance(default, float):
        yield from (value for value in (0.95, 0.02, 0.3, 3.0) if value != default)
    elif isinstance(default, tuple):
        yield from ("-".join(f"{part:g}" for part in default[:-1]), "1", "0.2", "2-2", "4-3")
    else:
        yield from (
            value for value in get_args(hint) if isinstance(value, str) and value != default
        )
        yield from ("0.02", "3")


def specs(name: str) -> Iterator[str]:
    """Specs of a method, each with one option changed, as far as the method allows it."""
    kind = methods.get(name)
    for option in fields(kind):
        if not option.init or option.name == "drafter":
            continue
        for value in others(kind, option):
            text = str(value).lower() if isinstance(value, bool) else value
            try:
                parse_method(f"{name}:{option.name}={text}")
            except (SkitError, ValueError):
                continue
            yield f"{name}:{option.name}={text}"


def drafter_specs(name: str) -> Iterator[str]:
    """Specs of a method with a drafter, each with one option of that drafter changed, as far as it allows it."""
    kind = drafters.get(name)
    for option in fields(kind):
        for value in others(kind, option):
            text = str(value).lower() if isinstance(value, bool) else value
            spec = f"fixed-k:drafter={name}.{option.name}={text}"
            try:
                parse_method(spec).require_drafter()
            except (SkitError, ValueError):
                continue
            yield spec


def outcome(scenario: Scenario) -> tuple[object, ...]:
    """What a simulation says: the work of every round, when it ended, and the memory for tokens."""
    result = simulate(scenario)
    columns = {**result.rounds, **result.responses}
    return scenario.memory.tokens, *(column.tobytes() for _, column in sorted(columns.items()))


def accepted(spec: str, system: str) -> Scenario | str:
    """The scenario, or why there is none."""
    try:
        return scenario(spec, system)
    except SkitError as error:
        return str(error)


DRAFTING = [name for name in methods.all() if parse_method(name).uses_drafter]


@pytest.mark.parametrize("system", PLACES)
@pytest.mark.parametrize("name", DRAFTING)
def test_an_option_of_a_method_moves_a_simulation_or_is_refused(name: str, system: str) -> None:
    require_moved(specs(name), name, system)


@pytest.mark.parametrize("system", PLACES)
@pytest.mark.parametrize("name", drafters.all())
def test_an_option_of_a_drafter_moves_a_simulation_or_is_refused(name: str, system: str) -> None:
    require_moved(drafter_specs(name), f"fixed-k:drafter={name}", system)


def require_moved(changes: Iterator[str], spec: str, system: str) -> None:
    """Fail for an option whose values are all accepted, and none of which changes what a simulation says."""
    plain = accepted(spec, system)
    if isinstance(plain, str):
        assert "\n" not in plain
        return
    own = outcome(plain)
    moved: dict[str, bool] = {}
    for change in changes:
        changed = accepted(change, system)
        option = change.removeprefix(spec)[1:].partition("=")[0]
        if isinstance(changed, str):
            assert "\n" not in changed
        else:
            moved[option] = moved.get(option, False) or outcome(changed) != own
    assert [option for option, has_moved in moved.items() if not has_moved] == []


def test_every_time_of_the_host_and_the_link_goes_where_its_name_says() -> None:
    """Any of them moves a simulation, so that two which are swapped would pass as options that move one."""
    times = {"frame_s": 0.001, "turn_s": 0.002, "turn_answer_s": 0.003, "answer_s": 0.004}
    network = ScenarioBuilder(ServingSettings(**times, shared_up_bytes_per_s=5.0)).network
    assert {name: getattr(network, name) for name in times} == times
    assert network.shared_up_bytes_per_s == 5.0


def test_several_methods_draft_alike_where_rates_are_stated() -> None:
    """A plan of stated rates names one method at most, for what drafts, and none of its lengths."""
    stated = PlanOptions(
        devices=5, classes=((4.0, 1.0),), acceptance="iid:alpha=0.8,length=4", gpus=("l40s",)
    )
    assert Market(stated).methods == ("fixed-k",)
    assert Market(replace(stated, methods=("fixed-k:drafter=block",))).methods == (
        "fixed-k:drafter=block",
    )
    for methods_, reason in (
        (("fixed-k", "wisp"), "given 2 times"),
        (("fixed-k:k=6",), "k changes nothing"),
    ):
        with pytest.raises(SkitError, match=reason):
            _ = Market(replace(stated, methods=methods_)).methods


@pytest.mark.parametrize("method", ["wisp", "fixed-k:k=3"])
def test_a_method_under_a_system_that_does_not_draft_is_refused(method: str) -> None:
    both = ServingSettings(system=("centralized", "wisp"), method=(method,), recording=NOTHING)
    assert [series.method for series in both.series()] == [method, method]
    with pytest.raises(SkitError, match="changes nothing: system centralized does not draft"):
        ServingSettings(system=("centralized",), method=(method,), recording=NOTHING).series()
