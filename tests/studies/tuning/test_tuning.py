"""`skit tune` and `--tuned`: one budget for all, chosen on some prompts and told on the others."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from command_line import error_line, read_object, skit_here
from environments import DEPLOYMENT
from study_pages import assert_made_again
from trace_builders import MODELS, VERIFY_S, made_requests, write_trace

from specbench_kit import api
from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import BUNDLED_FOLDER
from specbench_kit.reports.study import Study
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import RunDescription, TuningUse
from specbench_kit.runs.provenance import hash_model
from specbench_kit.studies.bench.choice import chosen
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.kinds import studies_in
from specbench_kit.studies.tuned_options import TunedOptions, bundled_file, load, save
from specbench_kit.studies.tuning.kind import TUNING
from specbench_kit.studies.tuning.objectives import OBJECTIVES
from specbench_kit.studies.tuning.options import Objective
from specbench_kit.studies.tuning.run import TuningSettings, candidates, run_tuning, tune
from specbench_kit.studies.tuning.summary import TuningSummary

FAR = replace(DEPLOYMENT, link=Link(rtt_s=0.2))
"""Where longer drafts pay."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(
        tmp_path_factory.mktemp("trace") / "trace.parquet", made_requests(6), MODELS
    ).path


def settings(trace: Path, *names: str, budget: int = 5) -> TuningSettings:
    return TuningSettings(methods=names, traces=(trace,), deployment=FAR, budget=budget)


def render(tuned: TunedOptions, left_out: Mapping[str, str]) -> str:
    """The page on these options as HTML."""
    with TemporaryDirectory() as folder:
        study = Study(TUNING, Path(folder), RunDescription(), TuningSummary.of(tuned, left_out))
        (page,) = study.pages(Path(folder), ("html",))
        return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name, kind in methods.all().items() if kind.grid])
def test_every_candidate_is_a_setting_of_its_own(name: str) -> None:
    specs = candidates(name, 16, seed=0)
    assert specs[0] == name
    assert 6 <= len(specs) <= 16
    tried = [parse_method(spec) for spec in specs]
    assert all(
        method != earlier for number, method in enumerate(tried) for earlier in tried[:number]
    )
    assert candidates(name, 16, seed=0) == specs


def test_the_fastest_is_chosen_and_told_on_other_prompts(trace: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    tuned, left_out = tune(
        settings(trace, "fixed-k", "goodput", budget=9), lambda *step: reported.append(step)
    )
    assert not left_out
    assert reported[0] == ("fixed-k", 1, 9)
    choice = tuned.methods["fixed-k"]
    k = parse_method(choice.spec).k  # type: ignore[attr-defined]
    assert choice.tried == 6  # the trace holds drafts of six tokens
    assert choice.default_tokens_per_s is not None
    assert k > 4
    assert choice.tokens_per_s != choice.default_tokens_per_s
    assert (tuned.deployment, tuned.budget, tuned.run["requests"]) == ("test", 9, 6)


def test_a_default_that_the_trace_does_not_reach_is_told(trace: Path) -> None:
    tuned, left_out = tune(settings(trace, "threshold", "fixed-k", budget=2), lambda *_: None)
    words = "SHORTER DRAFTS: threshold (20 by default) drafts at most 6 tokens here"
    assert words in render(tuned, left_out)
    tuned, left_out = tune(settings(trace, "fixed-k", budget=2), lambda *_: None)
    assert "SHORTER DRAFTS" not in render(tuned, left_out)


@pytest.mark.parametrize(("objective", "k"), [("goodput", 5), ("cost", 1), ("energy", 1)])
def test_cost_and_energy_choose_the_shortest_draft_where_speed_chooses_a_long_one(
    objective: Objective, k: int, trace: Path
) -> None:
    """The server's own token comes with each verification, so that it is shared by the fewest drafted ones."""
    chosen = replace(settings(trace, "fixed-k", budget=12), objective=objective)
    tuned, left_out = tune(chosen, lambda *_: None)
    choice = tuned.methods["fixed-k"]
    assert parse_method(choice.spec).k == k  # type: ignore[attr-defined]
    assert tuned.objective == objective
    assert choice.default_merit is not None
    assert choice.merit >= choice.default_merit
    page = render(tuned, left_out)
    measure = OBJECTIVES[objective]
    assert f"is {measure.best}: " in page
    assert f"{objective}: {measure.unit}" in page
    assert (choice.value is None) == (objective == "goodput")


def test_what_a_token_costs_is_worked_out_by_hand() -> None:
    """Ten tokens of three rounds: four verified after 30 ms of drafting, a round without a draft, two after 20 ms."""
    record = RequestRecord("a", "", [1], time_kind="modelled")
    rounds = ((4, 4, 5, 0.03), (0, 0, 1, 0.0), (2, 2, 4, 0.02))
    record.rounds = [
        RoundRecord(
            drafted=drafted,
            submitted=drafted,
            accepted=accepted,
            committed=committed,
            prefill_s=0.0,
            draft_s=draft_s,
            policy_s=0.0,
            link_s=0.0,
            queue_s=0.0,
            verify_s=0.1,
            commit_s=0.0,
            end_s=1.0,
        )
        for drafted, accepted, committed, draft_s in rounds
    ]
    record.finish(list(range(10)), "length", 2.5)
    values = {name: measure.value([record]) for name, measure in OBJECTIVES.items()}
    assert values == pytest.approx({"goodput": 4.0, "cost": 10 / 7, "energy": 200.0})


def test_a_method_that_never_drafts_is_left_out_by_energy(trace: Path) -> None:
    chosen = replace(settings(trace, "group:bounds", budget=2), objective="energy")
    _, left_out = tune(chosen, lambda *_: None)
    assert "drafts nothing here" in left_out["round-trips"]


@pytest.mark.parametrize(
    ("objective", "draft_s", "wrong", "chosen"),
    [
        ("energy", 0.001, False, "light 0.001"),
        ("energy", 0.004, False, "small"),
        ("cost", 0.001, True, "small"),
    ],
)
def test_energy_chooses_the_quicker_draft_and_cost_the_better_one(
    objective: Objective, draft_s: float, wrong: bool, chosen: str, trace: Path, tmp_path: Path
) -> None:
    other = lighter(tmp_path / "light.parquet", draft_s, wrong=wrong)
    both = TuningSettings(methods=("fixed-k",), traces=(trace, other), budget=4)
    tuned, left_out = tune(replace(both, objective=objective), lambda *_: None)
    assert tuned.drafts[0].name == chosen
    assert tuned.drafts[0].value == tuned.methods["fixed-k"].value
    assert f"the {OBJECTIVES[objective].unit} with it" in render(tuned, left_out)


def lighter(
    path: Path, draft_s: float, *, wrong: bool = False, verify_s: tuple[float, ...] = VERIFY_S
) -> Path:
    """A trace of the same answers, whose draft takes another time, and is wrong from its first token on if asked."""
    requests = made_requests(6)
    if wrong:
        requests = [replace(request, drafted=request.drafted + 1) for request in requests]
    models = {**MODELS, "draft": {"name": f"light {draft_s:g}", "hash": "c" * 64}}
    return write_trace(path, requests, models, draft_s=draft_s, verify_s=verify_s).path


@pytest.mark.parametrize(
    ("draft_s", "wrong", "chosen"),
    [(0.001, False, "light 0.001"), (0.004, False, "small"), (0.001, True, "small")],
)
def test_the_draft_is_chosen_by_what_it_costs_and_by_what_is_accepted(
    draft_s: float, wrong: bool, chosen: str, trace: Path, tmp_path: Path
) -> None:
    """Its machine was slow when it verified, which must decide nothing."""
    slow = tuple(3 * seconds for seconds in VERIFY_S)
    lighter_trace = lighter(tmp_path / "light.parquet", draft_s, wrong=wrong, verify_s=slow)
    names = ("fixed-k", "threshold")
    tuned, left_out = tune(
        TuningSettings(methods=names, traces=(trace, lighter_trace), budget=4), lambda *_: None
    )
    assert not left_out
    assert [draft.name for draft in tuned.drafts] == [
        chosen,
        *({"small", f"light {draft_s:g}"} - {chosen}),
    ]
    assert tuned.run["models"]["draft"]["name"] == chosen  # type: ignore[index]
    best = max(tuned.methods.values(), key=lambda method: method.tokens_per_s)
    assert (tuned.drafts[0].spec, tuned.drafts[0].tokens_per_s) == (best.spec, best.tokens_per_s)
    page = render(tuned, left_out)
    assert f"Of 2 drafts, {chosen} is chosen" in page
    save(tuned, tmp_path / "tuned.json")
    assert load(tmp_path / "tuned.json") == tuned


def test_times_of_a_disturbed_machine_are_no_ground_for_a_choice(
    trace: Path, tmp_path: Path
) -> None:
    busy = write_trace(
        tmp_path / "busy.parquet", made_requests(6), MODELS, machine=[{"steal": 0.2, "lanes": {}}]
    ).path
    tuned, left_out = tune(
        TuningSettings(methods=("fixed-k",), traces=(trace, busy), budget=2), lambda *_: None
    )
    assert tuned.disturbed == [
        "busy.parquet: the host withheld 20.0% of the processor time (at most 2%)"
    ]
    page = render(tuned, left_out)
    assert page.count("DISTURBED MACHINE") == 1
    warning_at = page.index("DISTURBED MACHINE: the times that decided do not hold: busy.parquet")
    assert warning_at < page.index("is the fastest") < page.index("MODELLED TIME")
    elsewhere, _ = tune(settings(busy, "fixed-k", budget=2), lambda *_: None)
    assert elsewhere.disturbed == []


def test_traces_of_other_answers_or_times_are_not_compared(trace: Path, tmp_path: Path) -> None:
    other_answers = write_trace(
        tmp_path / "other.parquet", made_requests(6, length=30), MODELS
    ).path
    with pytest.raises(SkitError, match="do not hold the same answers to the same prompts"):
        tune(TuningSettings(methods=("fixed-k",), traces=(trace, other_answers)), lambda *_: None)
    with pytest.raises(SkitError, match="leave out --deployment"):
        TuningSettings(methods=("fixed-k",), traces=(trace, trace), deployment=FAR)
    with pytest.raises(SkitError, match="--replay names no trace"):
        TuningSettings(methods=("fixed-k",), traces=())


def test_what_is_stored_names_no_folder_of_the_machine(trace: Path) -> None:
    argv = ("skit", "tune", "--out", "/data/jo/tuned.json")
    tuned, _ = tune(replace(settings(trace, "fixed-k", budget=1), argv=argv), lambda *_: None)
    assert tuned.run["argv"] == ["skit", "tune", "--out", "tuned.json"]


def test_the_page_names_the_fastest_and_its_interval_and_shows_every_gain(trace: Path) -> None:
    many = write_trace(trace.parent / "many.parquet", made_requests(14), MODELS).path
    tuned, left_out = tune(settings(many, "fixed-k", "goodput", budget=9), lambda *_: None)
    choice = tuned.methods["fixed-k"]
    assert choice.default_tokens_per_s is not None
    ratio = choice.tokens_per_s / choice.default_tokens_per_s
    assert choice.gain_interval is not None
    assert choice.gain_interval[0] < ratio < choice.gain_interval[1]
    page = render(tuned, left_out)
    first_screen = page.partition("<table")[0]
    fastest = max(tuned.methods.values(), key=lambda one: one.tokens_per_s)
    assert f"<code>{fastest.spec}</code> is the fastest" in first_screen
    assert 'aria-label="Speed before and after tuning"' in first_screen
    assert "FEW REQUESTS: gains rest on 7 requests" in first_screen


def test_a_table_of_lengths_is_filled_for_every_size_up_to_the_batch(trace: Path) -> None:
    tuning_settings = replace(settings(trace, "batch-lengths"), batch_size=4)
    tuned, _ = tune(tuning_settings, lambda *_: None)
    choice = tuned.methods["batch-lengths"]
    method = parse_method(choice.spec)
    assert method.sizes == (1, 2, 4)  # type: ignore[attr-defined]
    assert all(4 < length <= 6 for length in method.lengths)  # type: ignore[attr-defined]
    assert choice.default_tokens_per_s is not None
    assert choice.tokens_per_s > choice.default_tokens_per_s


def test_a_budget_of_one_keeps_what_there_is(trace: Path) -> None:
    tuned, _ = tune(settings(trace, "fixed-k", budget=1), lambda *_: None)
    choice = tuned.methods["fixed-k"]
    assert (choice.spec, choice.tried, choice.tokens_per_s) == (
        "fixed-k",
        1,
        choice.default_tokens_per_s,
    )


def test_what_cannot_be_replayed_is_left_out_of_a_group_and_refused_by_name(trace: Path) -> None:
    tuned, left_out = tune(settings(trace, "group:tree", "fixed-k", budget=1), lambda *_: None)
    assert set(tuned.methods) == {"fixed-k"}
    assert "a trace holds chains" in left_out["specinfer"]
    with pytest.raises(SkitError, match="a trace holds chains"):
        tune(settings(trace, "specinfer", budget=1), lambda *_: None)
    with pytest.raises(SkitError, match="skit tune chooses the options itself: name fixed-k alone"):
        tune(settings(trace, "fixed-k:k=2"), lambda *_: None)


def test_a_benchmark_takes_what_was_tuned(trace: Path, tmp_path: Path) -> None:
    tuned, _ = tune(settings(trace, "fixed-k", budget=9), lambda *_: None)
    file = tmp_path / "some/tuned.json"
    save(tuned, file)
    assert load(file) == tuned
    spec = tuned.methods["fixed-k"].spec
    options = BenchSettings(("fixed-k", "threshold"), tuned=file)
    assert chosen(options) == {spec: True, "threshold": True}
    assert chosen(replace(options, methods=("fixed-k:k=4",))) == {"fixed-k:k=4": True}
    group = chosen(replace(options, methods=("group:static",)))
    assert group[spec] is False
    assert not [method for method in group if method != spec and method.startswith("fixed-k")]
    assert tuned.doubts("test", 1) == []
    assert tuned.doubts("wan", 4) == [
        "tuned for deployment test, run with wan",
        "tuned for batch size 1, run with 4",
    ]
    assert tuned.lacking(chosen(options)) == ["threshold"]
    assert tuned.lacking(["autoregressive", spec, "fixed-k:k=4"]) == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"schema": 2}',
        json.dumps({"schema": 1, "methods": {"fixed-k": {"spec": "fixed-k:k=0"}}}),
    ],
)
def test_a_file_that_is_none_is_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    file.write_text(content)
    with pytest.raises(SkitError, match="not a file of skit tune") as refused:
        load(file)
    assert "\n" not in str(refused.value)
    with pytest.raises(SkitError, match=r"cannot be read \(No such file or directory\)"):
        load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("wrong", "said"), [({"budget": 0}, "--budget must be"), ({"batch_size": 0}, "--batch-size")]
)
def test_settings_that_make_no_sense(wrong: dict[str, int], said: str, trace: Path) -> None:
    with pytest.raises(SkitError, match=said):
        replace(settings(trace, "fixed-k"), **wrong)


def test_tuned_options_of_the_bundled_pair_are_found_by_deployment() -> None:
    draft = hash_model(BUNDLED_FOLDER / "smollm2" / "draft")
    files = sorted((BUNDLED_FOLDER / "smollm2" / "tuned").glob("*.json"))
    drafting_on_devices = {"local", "wan", "wisp", "specedge", "raspberry-pi", "vllm-rtx4090"}
    assert drafting_on_devices <= {file.stem for file in files}
    for file in files:
        tuned = load(bundled_file(BUNDLED_FOLDER / "smollm2", "smollm2", file.stem))
        assert tuned.deployment == ("recorded" if file.stem == "local" else file.stem)
        assert tuned.run["models"]["draft"]["hash"] == draft  # type: ignore[index]
        assert {"fixed-k", "threshold", "wisp", "specdecpp", "suffix"} <= set(tuned.methods)
    with pytest.raises(
        SkitError,
        match="none are bundled for 'smollm2' under the deployment moon, but under adaspec",
    ):
        bundled_file(BUNDLED_FOLDER / "smollm2", "smollm2", "moon")


def test_auto_is_refused_for_a_target_without_tuned_options() -> None:
    with pytest.raises(
        SkitError,
        match=r"--tuned auto: no tuned options are bundled for the target 'bundled': make",
    ):
        chosen(BenchSettings(("fixed-k",), tuned=Path("auto")))


def test_a_method_that_names_no_values_to_try_is_not_called_the_fastest(trace: Path) -> None:
    assert not methods.get("block-verification").grid
    tuned, left_out = tune(settings(trace, "block-verification", budget=4), lambda *_: None)
    page = render(tuned, left_out)
    assert (
        "Nothing was tuned: nothing but the defaults of <code>block-verification</code> was tried."
        in page
    )
    assert "is the fastest" not in page
    assert (
        "NOTHING TO TRY: only the defaults of <code>block-verification</code> were replayed" in page
    )


def test_a_choice_at_an_end_of_the_values_tried_is_told(trace: Path) -> None:
    tuned, _ = tune(settings(trace, "threshold", budget=9), lambda *_: None)
    at_the_end = replace(tuned.methods["threshold"], spec="threshold:threshold=0.2,max_draft=5")
    page = render(replace(tuned, methods={"threshold": at_the_end}), {})
    told = "least or largest of the values tried, so that a better one may lie beyond: <code>threshold</code>: "
    assert f"{told}threshold=0.2<" in page
    inside = replace(tuned.methods["threshold"], spec="threshold:threshold=0.3,max_draft=5")
    assert "may lie beyond" not in render(replace(tuned, methods={"threshold": inside}), {})


@pytest.mark.figures
def test_the_page_is_made_again_from_the_folder_or_the_file(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "some" / "tuned.json"
    options = (
        "--replay",
        trace,
        "--method",
        "fixed-k",
        "--method",
        "specinfer",
        "--deployment",
        "wan",
        "--budget",
        3,
    )
    assert "a trace holds chains" in error_line(skit_here("tune", *options, "--out", file))
    assert not file.with_suffix("").exists()
    done = skit_here(
        "tune", *options[:4], "--method", "group:tree", *options[6:], "--out", file, "--json"
    )
    assert done.returncode == 0, done.stderr
    folder = file.with_suffix("")
    assert json.loads(done.stdout.splitlines()[-1])["run_dirs"] == [str(folder)]
    assert f"report: {folder / 'report.html'}" in done.stderr.replace("\n", "")
    assert_made_again(folder, tmp_path / "again")
    page = (folder / "report.md").read_text()
    assert "a trace holds chains" in page
    (folder / "report.md").unlink()
    done = skit_here("report", file)
    assert done.returncode == 0, done.stderr
    assert (folder / "report.md").read_text() == page
    loaded = api.load(file)
    assert isinstance(loaded, api.Study)
    assert loaded.command == "tune"
    assert loaded.result.methods == load(file).methods
    assert loaded.run.deployment_name == "wan"
    assert loaded.to_pandas()["spec"].tolist() == [load(file).methods["fixed-k"].spec]
    assert any(line.startswith("FEW REQUESTS") for line in loaded.warnings)
    schema = skit_here("schema", "tune")
    assert '"summary.json"' in schema.stdout
    assert '"left_out"' in schema.stdout
    listed = skit_here("report", "--index", tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "some/tuned" in (tmp_path / "index.md").read_text()


def test_several_traces_leave_the_chosen_draft_in_the_folder(trace: Path, tmp_path: Path) -> None:
    light = lighter(
        tmp_path / "light.parquet", 0.001, verify_s=tuple(3 * seconds for seconds in VERIFY_S)
    )
    both = TuningSettings(methods=("fixed-k",), traces=(trace, light), budget=2)
    study = run_tuning(both, tmp_path / "tuned.json", lambda *_: None)
    assert (study.run.trace and study.run.trace.file) == "light.parquet"
    drafts = api.load(study.folder).to_pandas("drafts")  # type: ignore[union-attr]
    assert drafts["name"].tolist() == ["light 0.001", "small"]
    steps = read_object(study.folder / "run.json")["deployment"]
    of_the_first = run_tuning(
        replace(both, traces=(trace,)), tmp_path / "first.json", lambda *_: None
    )
    assert (
        steps["verifier"] == read_object(of_the_first.folder / "run.json")["deployment"]["verifier"]
    )
    run_tuning(replace(both, traces=(trace,)), tmp_path / "tuned.json", lambda *_: None)
    assert not (study.folder / "drafts.csv").exists(), "what an earlier tuning found"
    assert len(studies_in(study.folder)) == 1


def test_a_folder_of_another_command_is_left_alone(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "run.json").write_text('{"command": "sweep"}')
    with pytest.raises(
        SkitError,
        match=r"tuned\.json: the page goes into the folder .*tuned, which holds something",
    ):
        run_tuning(settings(trace, "fixed-k"), tmp_path / "tuned.json", lambda *_: None)
    assert not (tmp_path / "tuned.json").exists()
    assert error_line(skit_here("report", trace)).startswith(
        f"{trace} is a file: name the folder of a run"
    )


def test_a_trace_that_comes_with_the_kit_is_named_in_the_folder(tmp_path: Path) -> None:
    bundled = TuningSettings(
        methods=("fixed-k",), traces=(Path("qwen2.5-coder-tune"),), deployment=FAR, budget=1
    )
    study = run_tuning(bundled, tmp_path / "tuned.json", lambda *_: None)
    assert (study.run.trace and study.run.trace.file) == "qwen2.5-coder-tune.parquet"
    assert "target hash" in (study.folder / "report.md").read_text()


NAMES = ("fixed-k", "threshold", "margin")


def one_line(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def test_other_conditions_and_methods_without_options_are_on_every_page(
    trace: Path, tmp_path: Path
) -> None:
    tuned, _ = tune(settings(trace, "fixed-k", budget=2), lambda *_: None)
    save(tuned, tmp_path / "tuned.json")
    command = [
        "bench",
        *(word for name in NAMES for word in ("--method", name)),
        "--method",
        "fixed-k:k=1",
    ]
    given = [
        "--replay",
        trace,
        "--tuned",
        tmp_path / "tuned.json",
        "--deployment",
        "wan",
        "--out",
        tmp_path / "runs",
    ]
    done = skit_here(*command, *given)
    assert done.returncode == 0, done.stderr
    other = "OTHER TUNING: tuned.json: tuned for deployment test, run with wan."
    no_options = "NOT TUNED: tuned.json has no options for"
    (folder,) = [path for path in (tmp_path / "runs").iterdir() if not (path / "run.json").exists()]
    pages = [(folder / f"report.{suffix}").read_text(encoding="utf-8") for suffix in ("md", "html")]
    for text in (done.stdout, *pages):
        assert other in one_line(text)
        # Pages name methods from fast to slow, the terminal in the order of the command line before anything ran.
        assert re.search(
            rf"{no_options} (threshold, margin|margin, threshold): defaults run\.", one_line(text)
        )
    assert one_line(pages[0]).count("OTHER TUNING") == 1
    alone = {
        path.parent: one_line(path.read_text()) for path in (tmp_path / "runs").glob("*/report.md")
    }
    of_method = {
        read_object(path / "run.json")["method"]: text
        for path, text in alone.items()
        if path != folder
    }
    spec = tuned.methods["fixed-k"].spec
    assert {method for method, text in of_method.items() if other in text} == {spec}
    untuned = {method.partition(":")[0] for method, text in of_method.items() if no_options in text}
    assert untuned == set(NAMES) - {"fixed-k"}
    assert "TUN" not in of_method["fixed-k:k=1"]


def test_what_is_tuned_for_these_conditions_gives_no_caution(trace: Path, tmp_path: Path) -> None:
    tuned, _ = tune(
        TuningSettings(methods=("fixed-k",), traces=(trace,), budget=2), lambda *_: None
    )
    save(tuned, tmp_path / "tuned.json")
    same = BenchSettings(("fixed-k",), tuned=tmp_path / "tuned.json", out=tmp_path / "runs")
    (conclusion,), *_ = bench_replay(same, trace, lambda _: None)
    assert conclusion.directory.document.tuning == TuningUse("tuned.json")
    assert "TUN" not in (conclusion.directory.path / "report.md").read_text()
