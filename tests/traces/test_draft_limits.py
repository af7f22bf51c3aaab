"""Every method that drafts chains can be replayed with its default options, whatever the trace holds."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here
from environments import ENVIRONMENT
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_request, made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import parse_drafter
from specbench_kit.methods.base import Method, Policy, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.tuning.run import TuningSettings, tune
from specbench_kit.traces.draft_limits import fit_spec, shorter_drafts
from specbench_kit.traces.replay import replay, require_chain_method
from specbench_kit.traces.trace import TraceHeader

HEADER = TraceHeader(MAX_DRAFT, DRAFT_S, VERIFY_S, {})


def replayable(name: str) -> bool:
    """Return whether a method drafts chains of the draft model and needs no predictor."""
    method = parse_method(name)
    try:
        require_chain_method(method)
    except SkitError:
        return False
    needs_predictor = name in ("wisp", "specdecpp", "reachable")
    return (
        method.drafting == parse_drafter("model") and not needs_predictor and name != "layer-split"
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace") / "trace.parquet", made_requests(4)).path


@pytest.mark.parametrize("name", [name for name in methods.all() if replayable(name)])
def test_no_default_drafts_more_than_the_trace_holds(name: str) -> None:
    method = parse_method(fit_spec(name, HEADER)).prepare(ENVIRONMENT)
    assert len(list(replay(method, HEADER, made_requests(3)))) == 3


def test_a_limit_that_the_spec_states_is_left_to_be_refused() -> None:
    assert fit_spec("threshold:threshold=0.6", HEADER) == "threshold:threshold=0.6,max_draft=6"
    for spec in ("threshold:max_draft=20", "threshold:max_draft=3", "fixed-k", "suffix"):
        assert fit_spec(spec, HEADER) == spec
    assert fit_spec("fixed-k", TraceHeader(2, DRAFT_S, VERIFY_S, {})) == "fixed-k:k=2"


def test_what_is_drafted_ahead_counts_too() -> None:
    assert fit_spec("pearl", HEADER) == "pearl:k=3"
    assert fit_spec("pearl:pre_verify=false", HEADER) == "pearl:pre_verify=false,k=3"
    assert fit_spec("decoupled", HEADER) == "decoupled:k=2"
    assert fit_spec("decoupled:in_flight=2", HEADER) == "decoupled:in_flight=2,k=3"


@dataclass(frozen=True)
class Unnamed(Method):
    """Does not say that `longest` limits its drafts."""

    longest: int = 9
    shortest: int = 1

    def policy(self) -> Policy:
        return Policy()


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        (parse_method("fixed-k:k=7"), "set k to 6 or less"),
        (parse_method("threshold:max_draft=20"), "set max_draft to 6 or less"),
        (parse_method("pearl:k=4"), "set k to 3 or less"),
        (parse_method("fixed-k:k=6"), "take another method"),
        (Unnamed(), "set longest to 6 or less"),
        (Unnamed(longest=6), "take another method"),
    ],
)
def test_the_option_that_is_too_large_is_named_with_its_limit(method: Method, advice: str) -> None:
    assert shorter_drafts(method, MAX_DRAFT) == advice


def test_a_replay_says_in_run_and_report_which_draft_it_shortened(
    trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = skit_here("bench", "--replay", trace, "--method", "threshold", "--out", out)
    assert done.returncode == 0, done.stderr
    (folder,) = out.iterdir()
    run = read_object(folder / "run.json")
    assert (run["method"], run["options"]["max_draft"]) == ("threshold:max_draft=6", 6)
    assert run["lowered_limits"] == {
        "threshold": {"option": "max_draft", "default": 20, "lowered": 6}
    }
    for text in (done.stdout, (folder / "report.md").read_text(encoding="utf-8")):
        assert "SHORTER DRAFTS: threshold (20 by default) drafts at most 6 tokens here" in " ".join(
            text.split()
        )
    stated = skit_here(
        "bench", "--replay", trace, "--method", "threshold:max_draft=20,threshold=0", "--out", out
    )
    assert "the method wants more" in error_line(stated)


def test_two_names_of_what_becomes_one_method_run_once(trace: Path, tmp_path: Path) -> None:
    settings = BenchSettings(("threshold", "threshold:max_draft=6"), out=tmp_path)
    conclusions, left_out, _ = bench_replay(settings, trace, lambda _: None)
    assert [conclusion.summary.method for conclusion in conclusions] == ["threshold:max_draft=6"]
    assert left_out == {"threshold:max_draft=6": "on this trace it is the same as threshold"}


def test_a_sweep_and_a_simulation_replay_the_same_shortened_draft(
    trace: Path, tmp_path: Path
) -> None:
    point = ["--deployment", "wan", "--method", "margin", "--json"]
    load = [
        "--acceptance",
        trace,
        "--devices",
        2,
        "--seeds",
        1,
        "--duration",
        8,
        "--warm-up",
        1,
        "--jobs",
        1,
    ]
    for command in (["sweep", "--replay", trace, *point], ["simulate", *load, *point]):
        done = skit_here(*command, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        (folder,) = json.loads(done.stdout.splitlines()[-1])["run_dirs"]
        run = read_object(Path(folder) / "run.json")
        assert run["lowered_limits"]["margin"] == {
            "option": "max_draft",
            "default": 20,
            "lowered": 6,
        }
        assert "SHORTER DRAFTS: margin" in (Path(folder) / "report.md").read_text(encoding="utf-8")


def test_tuning_tries_the_default_with_the_drafts_that_the_trace_holds(trace: Path) -> None:
    tuned, left_out = tune(
        TuningSettings(methods=("threshold",), traces=(trace,), budget=1), lambda *_: None
    )
    assert left_out == {}
    assert tuned.methods["threshold"].spec == "threshold:max_draft=6"


def test_a_looked_up_draft_may_be_right_beyond_what_is_known_of_the_answer() -> None:
    """A match of m repetitions drafts m at most, and no more than follow its first place: half of the text."""
    trace = made_request("repeats", 40)
    trace.output_ids[:], trace.continuation[:] = [7] * 40, [7] * (MAX_DRAFT + 1)
    header = TraceHeader(MAX_DRAFT, DRAFT_S, VERIFY_S, {}, capacity=200)
    (record,) = replay(parse_method("suffix"), header, [trace])
    assert record.output_ids == trace.output_ids
    assert max(round_.submitted for round_ in record.rounds) > MAX_DRAFT + 1
