"""One benchmark in one process: what is decoded, what is kept, and what is concluded from it."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from breaking_method import add_breaking_in
from command_line import Rows, TinyPair, copy_model, read_object, read_rows, write_rows
from tiny_predictors import confidence_predictor

from specbench_kit.core.errors import MethodError, SkitError
from specbench_kit.datasets.loading import load
from specbench_kit.decoding.lossy import parse_lossy
from specbench_kit.deployments.loading import load as load_deployment
from specbench_kit.metrics import method_metrics
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import RequestCounts
from specbench_kit.reports.sections import cautions, wording
from specbench_kit.runs.directory import config_key
from specbench_kit.runs.folder import to_json
from specbench_kit.studies.bench.campaign import NOTHING_KEPT, Campaign
from specbench_kit.studies.bench.conclusion import report_jointly
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.traces.replay import identify_pair

QUESTIONS: Rows = [{"id": f"q{i}", "prompt": f"How many are {i} and {i}?"} for i in range(4)]
DIALOGUES: Rows = [
    {"id": f"d{i}", "turns": [f"Who was number {i}?", "And why?", "Really?"]} for i in range(2)
]


def settings(tiny: TinyPair, out: Path, *methods: str, **options: object) -> BenchSettings:
    base = BenchSettings(
        methods, str(tiny.target), str(tiny.draft), device="cpu", max_new_tokens=12, out=out
    )
    return replace(base, **options)  # type: ignore[arg-type]


def prepare(asked: BenchSettings, rows: Rows = QUESTIONS) -> Benchmark:
    asked.out.mkdir(exist_ok=True)
    file = write_rows(asked.out / "prompts.jsonl", *rows)
    return Benchmark(asked, load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0))


def test_a_policy_that_fails_in_its_warm_up_ends_alone(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_breaking_in(monkeypatch)
    # The ids of all requests end with nothing, so that the first one that it drafts for is that of the warm-up.
    benchmark = prepare(settings(tiny, tmp_path, "breaking:request=", "fixed-k:k=2", repeats=2))
    benchmark.run(no_report)
    with pytest.raises(
        MethodError, match=r"^Breaking: .*not drafted.*, during warm-up; the other methods went on$"
    ):
        benchmark.bench.require_whole()
    counts = [conclusion.summary.requests.finished for conclusion in benchmark.write_results()]
    assert counts == [0, 8]


def test_nothing_is_decoded_if_the_policies_of_all_methods_fail(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_breaking_in(monkeypatch)
    benchmark = prepare(settings(tiny, tmp_path, "breaking:request="))
    with pytest.raises(MethodError, match=r"not drafted.*, during warm-up$"):
        benchmark.run(no_report)
    (run,) = benchmark.runs.values()
    assert run.baseline_records() == []


def no_report(_: Progress) -> None:
    """Nobody watches."""


def test_methods_are_compared_with_one_baseline(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k:k=3", "oracle:max_draft=3", batch_size=3))
    reported: list[Progress] = []
    benchmark.run(reported.append)
    conclusions = benchmark.write_results()
    fixed, oracle = (conclusion.summary for conclusion in conclusions)
    assert [progress.done for progress in reported] == list(range(1, 13))
    assert {progress.planned for progress in reported} == {12}
    assert fixed.requests == RequestCounts(4, 4, 0)
    assert fixed.lossless.errors == oracle.lossless.errors == 0
    assert fixed.baseline.overall.rounds == oracle.baseline.overall.rounds == 48
    assert oracle.overall.acceptance_rate == 1.0
    assert 0 < fixed.overall.accepted < fixed.overall.submitted
    written = read_object(conclusions[0].directory.path / "summary.json")
    assert "headroom" in written["overall"]
    first, second = (run.path / "baseline.jsonl" for run in benchmark.runs.values())
    assert first.read_bytes() == second.read_bytes()


def test_the_metrics_of_requests_are_computed_once_for_summary_page_and_table(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., object]:
        compute = getattr(method_metrics, name)

        def counted(*arguments: object) -> object:
            computed[name] += 1
            return compute(*arguments)

        return counted

    rows = [{**row, "category": f"c{number % 2}"} for number, row in enumerate(QUESTIONS)]
    options = settings(
        tiny, tmp_path, "fixed-k:k=3", "threshold", deployment=load_deployment("wan")
    )
    benchmark = prepare(options, rows)
    benchmark.run(no_report)
    own = ("counts", "pooled", "acceptance_by_position", "wasted_time", "latency", "phases")
    beside = ("colocation", "ratio_intervals", "attainment")
    of_run = ("per_makespan", "idle_shares")
    for name in (*own, *beside, *of_run):
        monkeypatch.setattr(method_metrics, name, counting(name))
    joint = report_jointly(tmp_path, benchmark.write_results())
    # All requests and two categories, of the baseline and of both methods; a baseline is not held
    # against itself, and only all requests have a makespan.
    assert computed == {
        **dict.fromkeys((*own, "colocation", "ratio_intervals"), 3 * 3),
        "attainment": 2 * 3,
        **dict.fromkeys(of_run, 3),
    }
    assert joint is not None
    assert [part.name for part in joint.result.parts] == ["all requests", "c0", "c1"]


def test_drafts_of_few_tokens_are_judged_by_what_they_were_drawn_from(
    tiny: TinyPair, tmp_path: Path
) -> None:
    """Drawn from one token they are accepted far less often than drawn from all."""
    few_token_settings = settings(
        tiny,
        tmp_path,
        "fixed-k:k=2",
        temperature=1.5,
        draft_top_n=1,
        max_new_tokens=40,
        baseline=False,
    )
    benchmark = prepare(few_token_settings)
    benchmark.run(no_report)
    (conclusion,) = benchmark.write_results()
    acceptance = conclusion.summary.sampling.acceptance
    assert acceptance.places > 50
    assert acceptance.expected_rate < 0.5
    assert conclusion.summary.sampling.consistent is not False
    assert conclusion.directory.document.config.draft_top_n == 1


def test_a_lossy_rule_that_shows_in_sampled_outputs_is_not_called_wrong(
    tiny: TinyPair, tmp_path: Path
) -> None:
    """The test of drawn drafts finds the rule, which accepts nearly every token here; the report says what it is."""
    rule = parse_lossy("typical:epsilon=0.0001,delta=0.9")
    benchmark = prepare(
        settings(tiny, tmp_path, "fixed-k:k=4", temperature=1.5, lossy=rule, max_new_tokens=100)
    )
    benchmark.run(no_report)
    (conclusion,) = benchmark.write_results()
    sampling = conclusion.summary.sampling
    assert sampling.consistent is False
    assert sampling.lossy
    sentence = wording.sampling_sentence(sampling)
    assert "sampling does not follow the target's distribution, as the rule lets it" in sentence
    assert cautions.result_cautions(conclusion.summary) == []
    compared = compare(load_runs([conclusion.directory.path])[0])
    (row,) = (row for row in compared.overall.values() if row.sampling_consistent is False)
    assert row.lossy


@pytest.mark.parametrize(
    ("option", "flag"), [("draft_answers", "draft-answers"), ("answer_rule", "answer-rule")]
)
def test_options_about_answers_are_refused_before_decoding_without_any(
    tiny: TinyPair, tmp_path: Path, option: str, flag: str
) -> None:
    value = {"draft_answers": True, "answer_rule": "strict"}[option]
    with pytest.raises(SkitError, match=f"--{flag}: prompts does not say which answers are right"):
        prepare(settings(tiny, tmp_path, "fixed-k:k=3", **{option: value}))


def test_a_pipeline_decodes_as_many_requests_at_once_as_others(
    tiny: TinyPair, tmp_path: Path
) -> None:
    """Its run says so, and stands beside one that goes round by round."""
    benchmark = prepare(
        settings(
            tiny, tmp_path, "fixed-k:k=3", "specpipe:stages=2,width=3,children=2", batch_size=3
        )
    )
    benchmark.run(no_report)
    fixed, piped = (conclusion.directory for conclusion in benchmark.write_results())
    assert [run.run["config"]["effective_batch_size"] for run in (fixed, piped)] == [3, 3]
    assert "EFFECTIVELY" not in (piped.path / "report.md").read_text()
    compared = compare(load_runs([fixed.path, piped.path])[0])
    assert len(compared.runs) == 2


def test_a_named_autoregressive_run_is_the_others_baseline(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k", "autoregressive", baseline=False))
    benchmark.run(no_report)
    fixed, plain = benchmark.write_results()
    assert fixed.directory.run["config"]["baseline"] is True
    assert fixed.directory.baseline_records() == plain.directory.records()
    assert fixed.summary.lossless.compared == 4
    assert plain.summary.baseline is None


def test_without_baseline_nothing_is_compared(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k", baseline=False))
    benchmark.run(no_report)
    (conclusion,) = benchmark.write_results()
    assert conclusion.directory.run["config"]["baseline"] is False
    assert conclusion.summary.baseline is conclusion.summary.lossless is None
    assert not (conclusion.directory.path / "baseline.jsonl").exists()


def test_the_run_names_models_and_data_by_content(tiny: TinyPair, tmp_path: Path) -> None:
    first_settings = settings(tiny, tmp_path / "a", "fixed-k")
    moved = replace(
        first_settings, target=str(copy_model(tiny.target, tmp_path / "target")), out=tmp_path / "b"
    )
    first, second = (prepare(s).runs["fixed-k"] for s in (first_settings, moved))
    assert first.run["models"] == second.run["models"]
    assert first.path.name[-8:] == second.path.name[-8:]
    (Path(moved.target) / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    reworded = prepare(moved).runs["fixed-k"]
    assert reworded.run["models"]["target"]["hash"] != first.run["models"]["target"]["hash"]
    assert config_key(reworded.run) != config_key(first.run)


def test_the_reason_for_a_sample_does_not_define_the_run(tiny: TinyPair, tmp_path: Path) -> None:
    options = settings(tiny, tmp_path, "fixed-k")
    file = write_rows(tmp_path / "prompts.jsonl", *QUESTIONS)
    loaded = load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)
    (first,) = Benchmark(options, replace(loaded, reason="the hub is down")).runs.values()
    (again,) = Benchmark(
        replace(options, resume=True), replace(loaded, reason="it timed out")
    ).runs.values()
    assert first.run["sample_reason"] == "the hub is down"
    assert again.path == first.path


def test_there_are_no_more_slots_than_requests_can_be_open(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k", batch_size=10**9), DIALOGUES)
    slots = benchmark.bench.runners["target"].executor.slots
    assert slots == len(DIALOGUES) * 3, "the baseline, the method, and the baseline beside itself"


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_long_template_and_garbled_answers_find_room(
    batch_size: int, tiny: TinyPair, tmp_path: Path
) -> None:
    target = copy_model(tiny.target, tmp_path / "talkative")
    template = target / "chat_template.jinja"
    template.write_text("You are patient. " * 12 + template.read_text())
    options = settings(tiny, tmp_path, "fixed-k", batch_size=batch_size, target=str(target))
    benchmark = prepare(options, DIALOGUES)
    benchmark.run(no_report)
    (conclusion,) = benchmark.write_results()
    assert conclusion.summary.requests == RequestCounts(6, 6, 0)
    records = conclusion.directory.records()
    assert all(len(r.output_ids) == 12 or r.finish_reason == "eos" for r in records)
    assert any(
        len(benchmark.bench.pair.tokenizer(r.text)["input_ids"]) > len(r.output_ids)
        for r in records
    )


def interrupt(benchmark: Benchmark, after: int) -> None:
    def report(progress: Progress) -> None:
        if progress.done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmark.run(report)


def test_an_interrupted_batch_is_still_checked_for_losslessness(
    tiny: TinyPair, tmp_path: Path
) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k", batch_size=2))
    interrupt(benchmark, after=4)
    (run,) = benchmark.runs.values()
    baseline = read_rows(run.path / "baseline.jsonl")
    baseline[0]["output_ids"][3] ^= 1
    write_rows(run.path / "baseline.jsonl", *baseline)
    (conclusion,) = benchmark.write_results()
    assert conclusion.summary.partial is True
    assert conclusion.summary.requests == RequestCounts(4, 2, 0)
    assert [d.position for d in conclusion.summary.lossless.divergences] == [3]


def test_a_run_without_any_finished_request_has_a_report(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k"))
    (conclusion,) = benchmark.write_results()
    assert conclusion.summary.requests.finished == 0
    report = (conclusion.directory.path / "report.md").read_text()
    assert "PARTIAL RUN: 0 of 4 requests finished." in report


def test_a_method_that_had_finished_is_resumed_with_one_that_had_not(
    tiny: TinyPair, tmp_path: Path
) -> None:
    options = settings(tiny, tmp_path, "fixed-k", "threshold", batch_size=4)
    benchmark = prepare(options)
    interrupt(benchmark, after=9)
    assert [c.summary.partial for c in benchmark.write_results()] == [False, True]
    resumed = prepare(replace(options, resume=True))
    assert resumed.runs == benchmark.runs
    resumed.run(no_report)
    assert [c.summary.partial for c in resumed.write_results()] == [False, False]
    with pytest.raises(SkitError, match="no unfinished run with these settings"):
        prepare(replace(options, resume=True))


def test_a_run_without_an_answer_is_resumed_as_a_new_one(tiny: TinyPair, tmp_path: Path) -> None:
    options = settings(tiny, tmp_path, "fixed-k")
    prepare(options).write_results()
    resumed = prepare(replace(options, resume=True))
    resumed.run(no_report)
    (conclusion,) = resumed.write_results()
    assert "resumptions" not in conclusion.directory.run
    assert conclusion.summary.overall.throughput is not None


def test_many_methods_are_told_that_their_first_answers_outlast_the_minutes(
    tiny: TinyPair, tmp_path: Path
) -> None:
    methods = [f"fixed-k:k={length}" for length in range(1, 12)]
    file = write_rows(tmp_path / "prompts.jsonl", *QUESTIONS)
    loaded = load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)
    lines = {}
    for minutes in (1e-6, 1e6, None):
        asked = settings(tiny, tmp_path, *methods, minutes=minutes)
        with Campaign(asked, [loaded], lambda *_: None) as campaign:
            lines[minutes] = campaign.outlook
            assert campaign.end_interrupted() == NOTHING_KEPT
    assert "every method answers its first prompt before --minutes 1e-06 ends it" in lines[1e-6]
    assert all("first prompt" not in lines[minutes] for minutes in (1e6, None))
    assert all("12 methods, 48 answers to decode" in line for line in lines.values())


def test_checking_outputs_counts_the_runs_of_all_datasets(tiny: TinyPair, tmp_path: Path) -> None:
    """Where a large model is asked anew, checking takes minutes in which nothing else is said."""
    datasets = []
    for name in ("sums", "more"):
        file = write_rows(tmp_path / f"{name}.jsonl", *QUESTIONS[:1])
        datasets.append(load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0))
    asked = settings(tiny, tmp_path, "fixed-k", "threshold")
    told: list[tuple[int, int]] = []
    with Campaign(asked, datasets, lambda *_: None) as campaign:
        campaign.run(no_report)
        conclusions = campaign.write_results(lambda *counts: told.append(counts))
    assert len(conclusions) == 4
    assert told == [(done, 4) for done in range(4)]


def test_a_run_whose_report_could_not_be_written_can_be_resumed(
    tiny: TinyPair, tmp_path: Path
) -> None:
    options = settings(tiny, tmp_path, "fixed-k", "threshold")
    benchmark = prepare(options)
    benchmark.run(no_report)
    blocked = benchmark.runs["threshold"].path / "report.md"
    blocked.mkdir()
    with pytest.raises(SkitError, match=r"cannot write the report in"):
        benchmark.write_results()
    blocked.rmdir()
    resumed = prepare(replace(options, resume=True))
    resumed.run(no_report)
    assert [conclusion.summary.partial for conclusion in resumed.write_results()] == [False, False]


def test_the_summary_on_disk_is_the_one_returned(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "threshold"))
    benchmark.run(no_report)
    (conclusion,) = benchmark.write_results()
    assert read_object(conclusion.directory.path / "summary.json") == json.loads(
        to_json(conclusion.summary)
    )


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("methods", (), "at least one --method"),
        ("methods", ("fixed-k", "fixed-k"), "given twice"),
        ("limit", 0, "--limit must be at least 1, not 0"),
        ("max_new_tokens", 0, "--max-new-tokens must be at least 1"),
        ("batch_size", 0, "--batch-size must be at least 1"),
        ("temperature", -0.1, "--temperature must be a number from 0 up, not -0.1"),
        ("temperature", float("nan"), "--temperature must be a number"),
        ("temperature", float("inf"), "--temperature must be a number"),
        ("top_p", 0.0, "--top-p must lie above 0"),
        ("top_p", 1.1, "--top-p must lie above 0"),
        ("top_k", -1, "--top-k must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(option: str, value: object, reason: str) -> None:
    with pytest.raises(SkitError, match=reason):
        replace(BenchSettings(("fixed-k",)), **{option: value})  # type: ignore[arg-type]


def test_the_run_names_its_predictor_by_content_and_no_folder_of_the_machine(
    tiny: TinyPair, tmp_path: Path
) -> None:
    pair = identify_pair(str(tiny.target), str(tiny.draft))
    folder = confidence_predictor(tmp_path / "deep" / "mine", pair, threshold=0.03)
    benchmark = prepare(settings(tiny, tmp_path, f"wisp:predictor={folder},max_draft=3"))
    benchmark.run(no_report)
    (conclusion,) = benchmark.write_results()
    run = conclusion.directory
    assert run.run["method"] == conclusion.summary.method == "wisp:predictor=mine,max_draft=3"
    used = run.run["uses"]["predictor"]
    assert (used["family"], used["threshold"], used["max_draft"]) == ("logistic", 0.03, 3)
    for file in run.path.glob("*.*"):
        assert str(tmp_path) not in file.read_text()
    retrained = run.run | {"uses": {"predictor": used | {"created": "later"}}}
    assert config_key(retrained) != config_key(run.run)


def test_a_conversation_with_tools_is_told_by_turn_and_by_kind(
    tiny: TinyPair, tmp_path: Path
) -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "1"},
    ]
    rows = [{"id": f"t{i}", "messages": messages, "tools": [{"name": "add"}]} for i in range(2)]
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k:k=2", "prompt-lookup"), rows)
    benchmark.run(no_report)
    conclusions = benchmark.write_results()
    for conclusion in conclusions:
        told = conclusion.summary.tool_calls
        assert told is not None
        assert (told.answers, [turn.requests for turn in told.turns]) == (4, [2, 2])
        first, second = told.turns
        assert first.prompt_tokens < second.prompt_tokens
        assert sum(part.tokens for part in told.kinds) == sum(
            len(record.output_ids) for record in conclusion.directory.records()
        )
        assert "## Calls of tools" in (conclusion.directory.path / "report.md").read_text()
    study = report_jointly(tmp_path, conclusions)
    assert study is not None
    assert "## Calls of tools" in (study.folder / "report.md").read_text()
