"""A benchmark under a grammar: what is refused first, what is recorded, and what is said of the outputs."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("llguidance")

import torch
from command_line import Rows, TinyPair, read_object, read_rows, write_rows
from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.loading import load, read_prompts
from specbench_kit.decoding import constraint, verification
from specbench_kit.decoding.constraint import parse_constraint
from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting import model as model_drafts
from specbench_kit.decoding.sampling import Sampler, draw
from specbench_kit.deployments.loading import load as load_deployment
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.evidence import GreedyChoice
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.shapes import RecomputedLogits
from specbench_kit.reports.sections.cautions import result_cautions
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.opening import release_locks
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings

QUESTIONS: Rows = [{"id": f"q{i}", "prompt": f"How many are {i} and {i}?"} for i in range(3)]
REGEX = "[abc]{3,9}d"
THINKING = "<think>[abc]{3}</think>[xyz]{3}"


def settings(
    tiny: TinyPair,
    out: Path,
    *methods: str,
    grammar: str | None = f"regex:{REGEX}",
    **options: object,
) -> BenchSettings:
    base = BenchSettings(
        methods,
        str(tiny.target),
        str(tiny.draft),
        device="cpu",
        max_new_tokens=16,
        out=out,
        constraint=None if grammar is None else parse_constraint(grammar),
    )
    return replace(base, **options)  # type: ignore[arg-type]


def prepare(asked: BenchSettings, rows: Rows = QUESTIONS) -> Benchmark:
    asked.out.mkdir(exist_ok=True)
    file = write_rows(asked.out / "prompts.jsonl", *rows)
    return Benchmark(asked, load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0))


def decoded(asked: BenchSettings, rows: Rows = QUESTIONS) -> list[Conclusion]:
    benchmark = prepare(asked, rows)
    benchmark.run(lambda _: None)
    return benchmark.write_results()


def texts(conclusion: Conclusion) -> dict[str, str]:
    rows = read_rows(conclusion.directory.path / "requests.jsonl")
    return {row["request_id"]: row["text"] for row in rows}


def test_outputs_follow_the_grammar_and_equal_masked_plain_decoding(
    tiny: TinyPair, tmp_path: Path
) -> None:
    methods = "fixed-k:k=3", "specinfer:branching=2-1", "fixed-k:k=3,drafter=grammar"
    conclusions = decoded(settings(tiny, tmp_path, *methods, batch_size=2))
    for conclusion in conclusions:
        summary, folder = conclusion.summary, conclusion.directory.path
        assert all(re.fullmatch(REGEX, text) for text in texts(conclusion).values())
        assert (summary.lossless.compared, summary.lossless.errors) == (3, 0)
        assert (summary.overall.valid_share, summary.overall.cut_share) == (1.0, 0.0)
        assert summary.baseline.overall.valid_share == 1.0
        assert summary.overall.forbidden_share in (0.0, None)
        run = read_object(folder / "run.json")
        config = run["config"]
        assert run["versions"]["llguidance"] == version("llguidance")
        assert config["constraint"] == f"regex:{REGEX}"
        assert re.fullmatch("[0-9a-f]{16}", config["constraint_hash"])
        page = (folder / "report.md").read_text()
        assert "**3 of 3 outputs are valid by the grammar, to its end.**" in page
        assert f"| grammar | regex {REGEX} (hash {config['constraint_hash']}) |" in page


def test_thoughts_and_replies_are_told_apart_of_real_answers(
    tiny: TinyPair, tmp_path: Path
) -> None:
    """A grammar makes the model think before it replies."""
    asked = settings(
        tiny,
        tmp_path,
        "fixed-k:k=3",
        grammar=f"regex:{THINKING}",
        max_new_tokens=40,
    )
    (conclusion,) = decoded(asked)
    assert all(re.fullmatch(THINKING, text) for text in texts(conclusion).values())
    thinking = conclusion.summary.thinking
    assert thinking is not None
    assert (thinking.answers, thinking.unfinished) == (3, 0)
    thoughts, reply = thinking.parts
    records = conclusion.requests.records
    tokens = sum(len(record.output_ids) for record in records)
    assert 3 * (thoughts.tokens + reply.tokens) == tokens
    assert thoughts.rounds + reply.rounds == sum(len(record.rounds) for record in records)
    decode_s = [record.e2e_s - record.ttft_s for record in records]
    assert thoughts.seconds + reply.seconds == pytest.approx(sum(decode_s) / 3)
    assert "## Thoughts and reply" in (conclusion.directory.path / "report.md").read_text()


def test_runs_under_different_grammars_are_not_compared(tiny: TinyPair, tmp_path: Path) -> None:
    for name, grammar in (("a", None), ("b", f"regex:{REGEX}")):
        decoded(settings(tiny, tmp_path / name, "fixed-k:k=1", grammar=grammar))
    with pytest.raises(SkitError, match=r"they differ in grammar: none / regex \[abc\]"):
        compare(load_runs([tmp_path / "a", tmp_path / "b"])[0])


def test_an_output_that_the_limit_cuts_is_called_cut(tiny: TinyPair, tmp_path: Path) -> None:
    (conclusion,) = decoded(settings(tiny, tmp_path, "fixed-k:k=3", max_new_tokens=2))
    assert conclusion.summary.overall.cut_share == 1.0
    page = (conclusion.directory.path / "report.md").read_text()
    assert "0 of 3 outputs are valid by the grammar, to its end; 3 were cut by" in page
    assert "GRAMMAR NOT FOLLOWED" not in page


def test_a_target_that_is_not_masked_is_found_at_its_first_forbidden_token(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "masked", lambda forward, _: forward)
    monkeypatch.setattr(model_drafts, "masked", lambda forward, _: forward)
    with pytest.raises(SkitError, match="the grammar refused a token"):
        decoded(settings(tiny, tmp_path, "fixed-k:k=3"))


SCHEMAS: Rows = [
    {"id": "yes", "prompt": "Is it?", "schema": {"type": "boolean"}},
    {"id": "which", "prompt": "Which?", "schema": '{"enum": ["left", "right"]}'},
    {
        "id": "both",
        "turns": ["One?", "Two?"],
        "json_schema": {"type": "integer", "maximum": 9, "minimum": 0},
    },
]


def test_an_output_that_breaks_its_grammar_is_said_first(tiny: TinyPair, tmp_path: Path) -> None:
    (conclusion,) = decoded(settings(tiny, tmp_path, "fixed-k:k=3"))
    summary = conclusion.summary
    assert result_cautions(summary) == []
    broken = structs.replace(summary, overall=structs.replace(summary.overall, valid_share=1 / 3))
    (line,) = result_cautions(broken)
    assert (
        line
        == "GRAMMAR NOT FOLLOWED: 1 of 3 outputs are valid by the grammar, to its end; 2 are WRONG."
    )


def test_an_interrupted_run_is_resumed(tiny: TinyPair, tmp_path: Path) -> None:
    asked = settings(tiny, tmp_path, "fixed-k:k=3", deployment=load_deployment("wan"))
    whole = decoded(replace(asked, out=tmp_path / "whole"))[0].directory
    first = prepare(asked)
    with pytest.raises(KeyboardInterrupt):
        first.run(_interrupt_after(2))
    release_locks([*first.runs.values()])
    (again,) = decoded(replace(asked, resume=True))
    assert again.directory.path == first.runs["fixed-k:k=3"].path
    assert again.directory.records() == whole.records()


def _interrupt_after(number: int) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.done == number:
            raise KeyboardInterrupt

    return report


def test_each_prompt_has_a_schema_of_its_own(tiny: TinyPair, tmp_path: Path) -> None:
    (conclusion,) = decoded(settings(tiny, tmp_path, "fixed-k:k=3", grammar="dataset"), SCHEMAS)
    found = {name: json.loads(text) for name, text in texts(conclusion).items()}
    assert found.keys() == {"yes", "which", "both/1", "both/2"}
    assert isinstance(found["yes"], bool)
    assert found["which"] in ("left", "right")
    assert all(found[name] in range(10) for name in ("both/1", "both/2"))
    assert conclusion.summary.lossless.errors == 0
    first = read_object(conclusion.directory.path / "run.json")["config"]
    other = [
        *SCHEMAS[:2],
        {**SCHEMAS[2], "json_schema": {"type": "integer", "maximum": 8, "minimum": 0}},
    ]
    again = prepare(settings(tiny, tmp_path / "b", "fixed-k:k=3", grammar="dataset"), other)
    (run,) = again.runs.values()
    assert first["constraint"] == run.run["config"]["constraint"] == "dataset"
    assert first["constraint_hash"] != run.run["config"]["constraint_hash"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {},
            "--constraint dataset: prompt 'q' has no field 'schema': give every prompt its JSON schema",
        ),
        ({"schema": "CREATE TABLE a"}, "prompt 'q' has no field 'schema'"),
        ({"schema": "{"}, "--constraint dataset: prompt 'q': a JSON schema is not valid JSON: "),
        (
            {"schema": {"type": "foo"}},
            "--constraint dataset: prompt 'q': not a valid json-schema: Invalid type: foo",
        ),
    ],
)
def test_a_prompt_without_a_right_schema_is_named_before_any_work(
    row: JsonObject, says: str, tiny: TinyPair, tmp_path: Path
) -> None:
    rows: Rows = [SCHEMAS[0], {"id": "q", "prompt": "And?", **row}]
    with pytest.raises(SkitError) as refused:
        prepare(settings(tiny, tmp_path, "fixed-k", grammar="dataset"), rows)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_schema_changes_no_prompt(tmp_path: Path) -> None:
    bare = [{name: row[name] for name in row if "schema" not in name} for row in SCHEMAS]
    files = [write_rows(tmp_path / f"{n}.jsonl", *rows) for n, rows in enumerate((SCHEMAS, bare))]
    first, second = map(read_prompts, files)
    assert [prompt.fingerprint for prompt in first] == [prompt.fingerprint for prompt in second]
    assert [bool(prompt.schema) for prompt in (*first, *second)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lossy": "typical"}, "--constraint cannot go with --lossy: "),
        ({"launch": "processes"}, "--constraint cannot go with --launch: "),
        ({"draft_answers": True}, "--constraint cannot go with --draft-answers: "),
    ],
)
def test_what_is_not_masked_is_refused(
    options: JsonObject, says: str, tiny: TinyPair, tmp_path: Path
) -> None:
    with pytest.raises(SkitError, match=f"^{says}"):
        settings(tiny, tmp_path, "fixed-k", **options)


@pytest.mark.parametrize(
    ("method", "grammar", "says"),
    [
        (
            "specpipe:stages=2",
            "regex:a",
            r"^specpipe: a pipeline is not masked by a grammar: leave out --constraint$",
        ),
        (
            "fixed-k:drafter=grammar",
            None,
            r"drafter 'grammar' drafts what a grammar forces: add --constraint$",
        ),
        (
            "fixed-k:drafter=first-of.first=grammar+second=model",
            None,
            r"drafter 'first-of.first=grammar\+second=model' drafts what a grammar forces: add --constraint$",
        ),
        ("fixed-k", "regex:(", r"^--constraint: not a valid regex: unclosed group$"),
    ],
)
def test_what_cannot_follow_a_grammar_is_refused_before_any_work(
    method: str, grammar: str | None, says: str, tiny: TinyPair, tmp_path: Path
) -> None:
    with pytest.raises(SkitError, match=says):
        prepare(settings(tiny, tmp_path, method, grammar=grammar))


def test_without_the_library_the_extra_is_named(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraint, "find_spec", lambda _: None)
    with pytest.raises(SkitError, match=r"pip install 'specbench-kit\[constrained\]'"):
        prepare(settings(tiny, tmp_path, "fixed-k"))
    prepare(settings(tiny, tmp_path, "fixed-k", grammar=None))


def test_outputs_that_differ_are_judged_by_masked_logits(tiny: TinyPair, tmp_path: Path) -> None:
    """The likeliest of all tokens is seldom allowed, so that without the mask no rounding could explain an output."""
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k:k=3"))
    benchmark.run(lambda _: None)
    (run,) = benchmark.runs.values()
    bench, record = benchmark.bench, run.records()[0]
    free = RecomputedLogits(bench.runners["target"], bench.pair.target.shell)
    masked = free.under(
        lambda one: bench.prompts.grammars.allowed(str(run.document.dataset.digest), one)
    )
    choice = GreedyChoice()
    for name in ("plain", "rounds", "single_forward", "control", "precise"):
        scores, own = (choice.scores(getattr(shapes, name)(record)) for shapes in (free, masked))
        tokens = [[choice.token(row, 0) for row in rows] for rows in (scores, own)]
        assert tokens[1] == record.output_ids
        assert tokens[0] != record.output_ids
        assert not torch.isnan(own - own).any()
    assert (masked.reduced, masked.bitwise) == (free.reduced, free.bitwise)


def test_skipped_tokens_are_said_and_their_outputs_are_judged_in_the_shapes_that_they_had(
    tiny: TinyPair, tmp_path: Path
) -> None:
    """Of ten tokens the grammar leaves three open; all shapes of forwards choose what was written."""
    conclusions = [
        decoded(
            settings(
                tiny,
                tmp_path / name,
                "fixed-k:k=3",
                grammar="regex:[ab]ccb[ab]cc[ab]cc",
                skip_forced=name == "skipped",
            )
        )[0]
        for name in ("skipped", "verified")
    ]
    assert texts(conclusions[0]) == texts(conclusions[1])
    skipping, verifying = (conclusion.summary for conclusion in conclusions)
    plain = skipping.baseline.overall
    assert plain.forced_share == pytest.approx(8 / 11)
    assert (plain.rounds, plain.acceptance_length) == (9, 1.0)
    # Some forced tokens are drafted within a chain, and count as accepted drafts but as no choices.
    overall = skipping.overall
    assert 0 < overall.forced_share < 8 / 11
    assert verifying.overall.forced_share == 0.0
    assert verifying.overall.choice_acceptance_rate <= verifying.overall.acceptance_rate
    assert overall.tokens == verifying.overall.tokens == plain.tokens == 33
    for summary in (skipping, verifying):
        assert (summary.lossless.compared, summary.lossless.errors) == (3, 0)
    pages = [(one.directory.path / "report.md").read_text() for one in conclusions]
    said = [" were not verified, since the grammar allows no others" in page for page in pages]
    assert said == [True, False]


def test_logits_are_recomputed_in_forwards_in_which_forced_tokens_ride(
    tiny: TinyPair, tmp_path: Path
) -> None:
    asked = settings(tiny, tmp_path, "fixed-k:k=3", grammar="regex:ab[ab]ccb[ab]cc[ab]cc")
    benchmark = prepare(asked)
    benchmark.run(lambda _: None)
    (run,) = benchmark.runs.values()
    bench, record = benchmark.bench, run.records()[0]
    assert record.forced_first == 2
    shapes = RecomputedLogits(bench.runners["target"], bench.pair.target.shell)
    masked = shapes.under(
        lambda one: bench.prompts.grammars.allowed(str(run.document.dataset.digest), one)
    )
    for logits in (masked.rounds(record), masked.plain(record), masked.plain(record, record)):
        assert [GreedyChoice().token(row, 0) for row in GreedyChoice().scores(logits)] == (
            record.output_ids
        )
    rounds, whole = shapes.rounds(record), shapes.single_forward(record)
    verified = [
        record.forced_first + sum(step.committed + step.forced for step in record.rounds[:number])
        for number in range(len(record.rounds))
    ]
    assert torch.allclose(rounds[verified], whole[verified], atol=1e-4)


# The gate of sampled outputs: the run's own check finds masks that come too late.


def _masked_too_late(
    sampler: Sampler, draft: Draft, nodes: Sequence[int], logits: torch.Tensor
) -> tuple[list[int], int]:
    """Wrong on purpose: acceptance by distributions that nothing was masked in; only what is drawn then is masked."""
    target = sampler.probabilities(logits[-1 - len(nodes) :])
    random = draft.session.random.from_position(draft.session.produced)
    allowed = draft.allowed_after((0, *nodes))
    path: list[int] = []
    weights = target[len(nodes)]
    for index, node in enumerate(nodes):
        source, row = draft.tree.source(node)
        assert isinstance(source, FullDistributions)
        token, own = draft.tree.tokens[node], source.probabilities[row]
        accepted = random.uniform("accept") * float(own[token]) <= float(target[index, token])
        if not accepted or not draft.allows(token, draft.tree.parents[node]):
            weights = (target[index] - own).clamp(min=0)
            break
        path.append(node)
    after = allowed[len(path)]
    keeps = torch.ones_like(weights) if after is None else torch.zeros_like(weights)
    if after is not None:
        keeps[: len(after)] = torch.from_numpy(after).float()
    left = weights * keeps
    return path, draw(
        (left if left.any() else target[len(path)] * keeps)[None], [random.uniform("target")]
    )[0]


def _sampled(tiny: TinyPair, out: Path, method: str) -> RunSummary:
    asked = settings(
        tiny,
        out,
        method,
        grammar="regex:[a-z]{40}",
        temperature=0.7,
        max_new_tokens=40,
        baseline=False,
        batch_size=8,
    )
    (conclusion,) = decoded(asked, [{"id": f"q{i}", "prompt": f"{i}?"} for i in range(16)])
    return conclusion.summary


@pytest.mark.parametrize(
    "method", ["fixed-k:k=3", "block-verification:k=3", "sampled-tree:branching=2-1"]
)
def test_the_check_of_sampled_outputs_passes_the_rules_of_the_kit(
    method: str, tiny: TinyPair, tmp_path: Path
) -> None:
    sampling = _sampled(tiny, tmp_path, method).sampling
    assert sampling.consistent is not False
    assert sampling.tokens.p_value > 1e-3
    # Of tokens alone it would take many more for as much power.
    assert sampling.acceptance is None or sampling.tokens.power > 0.5


def test_the_check_of_sampled_outputs_catches_masks_that_come_too_late(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (model_drafts, verification):
        monkeypatch.setattr(module, "masked", lambda forward, _: forward)
    monkeypatch.setattr(verification, "judge_sampled", _masked_too_late)
    summary = _sampled(tiny, tmp_path, "fixed-k:k=3")
    assert summary.overall.valid_share == 1.0
    assert summary.sampling.consistent is False
