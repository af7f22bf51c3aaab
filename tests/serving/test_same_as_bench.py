"""One simulated device takes the rounds and times of the replayed benchmark, whatever drafts, or is refused."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from msgspec import structs
from nightly import nightly_except

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import drafters, parse_drafter
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.fields import parse_field
from specbench_kit.deployments.loading import find
from specbench_kit.deployments.placing import drafts_on_edge
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.traces.draft_limits import fit_spec
from specbench_kit.traces.library import trace_file
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceFile
from specbench_kit.traces.writing import TraceWriter

SYSTEMS = {"edge": "wisp-cache", "server": "adaspec", "none": "centralized"}
DEPLOYMENTS = ("specedge", "wan", "wisp-roofline", "vllm-rtx4090")
"""Edges that draft behind a short, a wide and a slow link, and a draft model beside the target."""
CALM = ("link.jitter_s=0", "link.loss=0")
"""The two draw from different random numbers, so that chance is left out."""
SPECS = [*methods.all(), *(f"fixed-k:drafter={name}" for name in drafters.all())]
SPECS += [
    "fixed-k:drafter=block.size=3,k=7",
    "threshold:drafter=block.size=2+keep=0.9-0.7",
    "pearl:drafter=block",
]
SPECS += [
    "threshold:unit=batch",
    "threshold:unit=any,threshold=0.2",
    "batch-lengths:lengths=5-2,sizes=1-4",
]
SPECS += ["adaspec:drafter=suffix", "adaspec:elimination=false"]
SPECS += [
    "fixed-k:drafter=prompt-lookup.lookup_s=0.001+max=4",
    "threshold:drafter=suffix",
    "pearl:drafter=suffix",
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    """Return the first request of a real pair's trace, for which there are predictors."""
    whole = TraceFile(trace_file(Path("qwen2.5-coder")), 1)
    path = tmp_path_factory.mktemp("traces") / "one.parquet"
    with TraceWriter(path, whole.header) as writer:
        for request in whole:
            writer.append(request)
    return TraceFile(path)


class Scene(NamedTuple):
    """A method on a deployment, in the benchmark and in the simulation."""

    method: Method
    deployment: Deployment
    scenario: Scenario


def scene(spec: str, name: str, trace: TraceFile, *set_: str) -> Scene:
    """Return both sides of a comparison; raise SkitError if either refuses."""
    method = parse_method(fit_spec(spec, trace.header))

    def builder(place: str) -> ScenarioBuilder:
        settings = ServingSettings(
            system=(SYSTEMS[place],),
            scheduler=("fcfs",),
            method=(spec,),
            acceptance=(str(trace.path),),
            deployment=(name,),
            replaced=(*CALM, *set_),
            devices=(1,),
            slo=("0.01/s",),
            arrivals="closed:ramp_s=0",
            duration_s=400.0,
            warmup_s=0.0,
            recording=RecordingSettings(),
        )
        return ScenarioBuilder(settings)

    values = dict(map(parse_field, (*CALM, *set_)))
    deployment = find(name).replace(values).build()
    place = "none"
    if method.uses_drafter:
        place = "edge" if drafts_on_edge(method, deployment) else "server"
    placed = builder(place)
    (point,) = placed.settings.points()
    return Scene(method, placed.deployment(point.series), placed.scenario(point))


def scene_or_reason(spec: str, name: str, trace: TraceFile) -> Scene | str:
    """Return both sides, or why there are none."""
    try:
        return scene(spec, name, trace)
    except SkitError as refusal:
        return str(refusal)


def in_benchmark(found: Scene, trace: TraceFile) -> RequestRecord:
    prepared = prepare_for_replay(found.method, trace, found.deployment)
    (record,) = replay(prepared, trace.header, trace, deployment=found.deployment)
    return record


def column(rounds: Sequence[RoundRecord], name: str) -> list[float]:
    return [getattr(entry, name) for entry in rounds]


def differences(found: Scene, trace: TraceFile) -> str:
    """Return in words how one device's rounds differ from those of the benchmark; nothing if they do not."""
    record = in_benchmark(found, trace)
    count = len(record.rounds)
    scenario = replace(found.scenario, duration_s=1.2 * record.rounds[-1].end_s)
    rounds = simulate(scenario, native=False).rounds
    assert np.isfinite(rounds["answered_s"][:count]).all()
    for name in ("submitted", "accepted", "committed"):
        if rounds[name][:count].tolist() != column(record.rounds, name):
            return f"{name}: {rounds[name][:8].tolist()} for {column(record.rounds, name)[:8]}"
    ended_s = np.array(column(record.rounds, "end_s"))
    answered_s = rounds["answered_s"][:count]
    same = np.isclose(answered_s, ended_s, rtol=1e-12, atol=0)
    if not same.all():
        first = int((~same).argmax())
        return f"round {first}: {answered_s[first]} s for {ended_s[first]} s"
    compiled = simulate(scenario).rounds
    return (
        ""
        if np.array_equal(compiled["answered_s"], rounds["answered_s"])
        else "the compiled loop differs"
    )


RECORDED = [name for name in drafters.all() if drafters.get(name).recordable]


@pytest.mark.parametrize("name", ["specedge", "vllm-rtx4090"])
@pytest.mark.parametrize("drafter", RECORDED)
def test_traces_of_all_drafters_are_simulated_as_they_are_replayed(
    drafter: str, name: str, trace: TraceFile, tmp_path: Path
) -> None:
    """The drafts are those of the draft model, recorded as if they were this drafter's, which decides their time."""
    models = dict(trace.header.run["models"])
    named = parse_drafter(drafter).models
    models |= dict.fromkeys(named, models["draft"])
    header = structs.replace(
        trace.header, drafter=drafter, run={**trace.header.run, "models": models}
    )
    with TraceWriter(tmp_path / "other.parquet", header) as writer:
        for request in trace:
            writer.append(replace(request, sources=[drafter] * len(request.output_ids)))
    other = TraceFile(tmp_path / "other.parquet")
    for spec in (
        "fixed-k:k=3",
        "threshold:max_draft=6",
        "adaspec:max_draft=4",
        "pearl:k=3",
        "decoupled",
    ):
        found = scene_or_reason(spec, name, other)
        if isinstance(found, str):
            assert any(reason in found for reason in (*REASONS, "has no more than tokens")), found
        else:
            assert differences(found, other) == "", spec


REASONS = (
    "that drafts trees cannot be replayed",
    "that fills a pipeline cannot be replayed",
    "a trace holds drafts of 'model'",
    "the method drafts while the target verifies",
    "simulated with what one draft model or head drafts token by token",
    "drafts what a grammar forces",
)
"""Why a method or a drafter is not simulated here; the simulation alone refuses the fourth and the fifth."""


@pytest.mark.parametrize(
    ("name", "spec"),
    nightly_except(list(product(("specedge", "vllm-rtx4090"), SPECS)), product(DEPLOYMENTS, SPECS)),
)
def test_one_device_takes_the_rounds_and_times_of_the_replayed_benchmark(
    name: str, spec: str, trace: TraceFile
) -> None:
    found = scene_or_reason(spec, name, trace)
    if isinstance(found, str):
        assert any(reason in found for reason in REASONS), found
        assert "\n" not in found
        return
    assert differences(found, trace) == ""


@pytest.mark.parametrize(
    ("system", "method", "deployment", "reason"),
    [
        ("wisp", "autoregressive", "wan", "the method does not draft, and the system does"),
        (
            "wisp",
            "fixed-k",
            "vllm-rtx4090",
            "its devices draft, and deployment vllm-rtx4090 drafts on the server",
        ),
        ("adaspec", "pearl", "wan", "the method drafts while the target verifies"),
        ("adaspec", "round-trips", "wan", "its server drafts, and the method on devices"),
    ],
)
def test_a_method_that_drafts_elsewhere_is_refused(
    system: str, method: str, deployment: str, reason: str
) -> None:
    settings = ServingSettings(
        system=(system,),
        method=(method,),
        acceptance=("qwen2.5-coder",),
        deployment=(deployment,),
        recording=RecordingSettings(),
    )
    (point,) = settings.points()
    with pytest.raises(SkitError, match=reason) as caught:
        ScenarioBuilder(settings).scenario(point)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["fixed-k:k=3", "adaspec", "batch-lengths"])
def test_a_server_drafts_beside_parts_of_prompts(method: str, trace: TraceFile) -> None:
    """What computes a part of its prompt is not drafted for; the others of its batch are, and all responses end."""
    settings = ServingSettings(
        system=("adaspec",),
        scheduler=("chunked:tokens=64",),
        method=(method,),
        acceptance=(str(trace.path),),
        deployment=("vllm-rtx4090",),
        devices=(12,),
        prompt_tokens="lognormal:mean=200,cv=0.6",
        duration_s=20.0,
        warmup_s=0.0,
        recording=RecordingSettings(),
    )
    (point,) = settings.points()
    result = simulate(ScenarioBuilder(settings).scenario(point))
    assert result.rounds["submitted"].max() >= 3
    ended = result.responses["end_s"]
    assert np.isfinite(ended).sum() > 20


def stated(
    method: str, acceptance: str = "iid:alpha=0.8,length=8", deployment: str = "wan"
) -> Scenario:
    settings = ServingSettings(
        method=(method,),
        acceptance=(acceptance,),
        deployment=(deployment,),
        system=("wisp-cache" if deployment == "wan" else "adaspec",),
        prompt_tokens="100",
        output_tokens="50",
        duration_s=20.0,
        warmup_s=0.0,
        devices=(2,),
        recording=RecordingSettings(),
    )
    (point,) = settings.points()
    return ScenarioBuilder(settings).scenario(point)


def test_stated_rates_cost_what_their_drafter_takes() -> None:
    """Drafts of eight: look-ups cost nothing, a block one forward, and two halves of a block two."""
    drafters_ = ("model", "block", "block.size=4", "suffix")
    drafted_s = [
        simulate(stated(f"fixed-k:drafter={name}")).rounds["draft_s"][4:].mean()
        for name in drafters_
    ]
    assert drafted_s[3] == 0
    assert drafted_s[0] > 3 * drafted_s[2] > 4 * drafted_s[1] > 0
    with pytest.raises(SkitError, match="which forwards drafter 'first-of' needs does not follow"):
        stated("fixed-k:drafter=first-of")


def test_what_drafts_beside_the_target_takes_of_its_memory() -> None:
    tokens = {
        spec: stated(spec, deployment="vllm-rtx4090").memory.tokens
        for spec in ("fixed-k", "suffix")
    }
    assert tokens == {"fixed-k": 18_728, "suffix": 42_266}


@pytest.mark.parametrize(
    "method", ["fixed-k:k=7", "threshold:threshold=0.2,max_draft=4", "wisp:send_last=true"]
)
def test_options_that_stated_rates_leave_without_effect_are_refused(method: str) -> None:
    name = method.partition(":")[2].partition("=")[0]
    with pytest.raises(
        SkitError, match=f"{name}.* changes nothing where iid rates state what is drafted"
    ):
        stated(method)


def test_a_server_cuts_drafts_at_the_longest_that_is_given() -> None:
    """Rates state eight tokens: a method's default of four cuts none of them, unless somebody asks for it."""
    drafted = [
        simulate(stated(spec, deployment="vllm-rtx4090")).rounds["submitted"].max()
        for spec in ("fixed-k", "fixed-k:k=1", "fixed-k:k=4", "fixed-k:k=8")
    ]
    assert drafted == [8, 1, 4, 8]
    with pytest.raises(SkitError, match="k changes nothing where iid rates state what is drafted"):
        stated("fixed-k:k=9", deployment="vllm-rtx4090")
    with pytest.raises(
        SkitError, match="threshold changes nothing where iid rates state what is drafted"
    ):
        stated("threshold:threshold=0.2,max_draft=4", deployment="vllm-rtx4090")
