import re

import pytest
from msgspec import structs, to_builtins
from report_builders import autoregressive_like, failed_record, make_run, simulate_chain, summary_of
from report_builders import render_run as render

from specbench_kit.metrics.losslessness import Losslessness, summarise_checks
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, LISTS, METRICS


@pytest.fixture
def records():
    return simulate_chain(requests=30, rounds=20, draft=4, alpha=0.7)


@pytest.fixture
def baseline(records):
    return autoregressive_like(records)


def counted(checks):
    """The counts as `summary.json` has them."""
    return to_builtins(summarise_checks(checks))


def identical(records):
    return counted([Losslessness(r.request_id, "identical") for r in records])


def section(report, title):
    return re.search(rf"^## {title}.*?(?=^## |^<details>|\Z)", report, re.MULTILINE | re.DOTALL)[0]


def cells(table_section, first):
    """The cells of the row that starts with `first`."""
    line = next(line for line in table_section.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_title_headline_and_setting(records, baseline):
    report = render(make_run(), summary_of(records, baseline, identical(records)), records)
    assert report.startswith("# `fixed-k:k=4` on gsm8k\n")
    headline = report.splitlines()[2]
    assert re.match(
        r"\*\*\d\.\d\dx the speed of autoregressive decoding on a typical prompt \(95% interval",
        headline,
    )
    assert "30 of 30 outputs identical, 30 requests in measured time" in headline
    setting = section(report, "What was run")
    assert (
        "gsm8k, 30 of 1,319 prompts, from the Hugging Face hub: openai/gsm8k main test" in setting
    )
    assert "bundled-target, 5.05 M parameters, hash abababababab" in setting
    assert cells(setting, "sampling")[1] == "greedy"
    assert cells(setting, "time")[1] == "measured by this machine's clock"
    assert cells(setting, "hardware")[1] == "Some CPU, 8 cores, 4 threads used, 32 GB memory"
    assert "WARNING" not in report


def test_a_speedup_over_few_prompts_is_not_called_one():
    records = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
    for number, record in enumerate(records):
        record.request_id, record.repeat = f"q{number // 2}", number % 2
    run = make_run(config=make_run()["config"] | {"repeats": 2})
    report = render(run, summary_of(records, autoregressive_like(records)), records)
    assert "decoding on a typical prompt, too few prompts to tell, " in report.splitlines()[2]
    assert cells(section(report, "What was run"), "limits")[1].endswith(
        "batch size 1, every request asked 2 times"
    )


def test_a_run_that_was_imported_counts_its_own_prompts(records):
    dataset = {
        "name": "spec-bench",
        "source": "imported",
        "location": "a.jsonl",
        "total": None,
        "count": 6,
    }
    report = render(make_run(dataset=dataset), summary_of(records), records)
    assert "spec-bench, 6 prompts, from the imported file a.jsonl" in report


def test_method_and_baseline_stand_in_one_table(records, baseline):
    summary = summary_of(records, baseline)
    results = section(render(make_run(), summary, records), "Results")
    method, plain = cells(results, "`fixed-k:k=4`"), cells(results, "autoregressive")
    assert method[1].startswith(f"{summary['overall']['typical_speedup']:.2f}x (")
    assert plain[1] == "–"
    assert plain[3] == "1.00"
    assert plain[6] == "15.0 ms"


def test_without_a_baseline_the_report_says_so(records):
    report = render(make_run(), summary_of(records), records)
    assert "Not checked: no autoregressive baseline was run." in report
    assert "the speed of autoregressive" not in report
    assert "\n| autoregressive |" not in report


def test_sample_data_partial_runs_failures_and_modelled_time_are_warned_about_first(records):
    run = make_run(time_kind="modelled")
    run["dataset"] |= {"source": "sample", "location": "gsm8k"}
    for record in records:
        record.time_kind = "modelled"
    records.append(failed_record("q30", "the prompt has 5000 tokens\nbut the context | holds 2048"))
    requests = {"planned": 80, "finished": 30, "failed": 1}
    report = render(run, summary_of(records, partial=True, requests=requests), records)
    warning = report[report.index("> [!WARNING]") : report.index("## What was run")]
    assert "SAMPLE DATA: a few bundled prompts stand in for gsm8k" in warning
    assert "PARTIAL RUN: 30 of 80 requests finished." in warning
    assert "FAILED REQUESTS: 1 of 80" in warning
    assert "MODELLED TIME" in warning
    failures = section(report, "Failed requests")
    assert r"| q30 | the prompt has 5000 tokens but the context \| holds 2048 |" in failures
    assert "## Latency (modelled)" in report


def test_divergences_are_listed_with_their_verdict(records, baseline):
    checks = [
        Losslessness("q0", "identical"),
        Losslessness("q1", "tie", 5, 99, 15, 2e-6, noise=3e-6, control=4e-6),
        Losslessness("q2", "error", 3, None, 12, 0.7),
        Losslessness("q3", "prompt differs"),
        Losslessness("q4", "not compared"),
    ]
    report = render(make_run(), summary_of(records, baseline, counted(checks)), records)
    lossless = section(report, "Losslessness")
    assert "**Not lossless: 1 of 3 outputs equal" in lossless
    assert "| q1 | tie | 5 | 99 | 15 | 2e-06 | 3e-06 | 4e-06 |" in lossless
    assert "| q2 | error | 3 | (ended) | 12 | 0.7 | – | – |" in lossless
    assert "so that the prompt differs from the baseline's: 1." in lossless
    assert "not compared: 1." in lossless
    assert "NOT LOSSLESS" in report[: report.index("## What was run")]


def test_outputs_that_cannot_be_judged_are_not_called_wrong(records, baseline):
    checks = [
        Losslessness("q1", "identical"),
        Losslessness("q2", "unjudged", 3, 7, 12, reason="nothing is known"),
    ]
    scoring = {"outputs": 1, "forwards": 80, "seconds": 2.5}
    summary = summary_of(records, baseline, counted(checks) | {"scoring": scoring})
    text = render(make_run(), summary, records)
    lossless = section(text, "Losslessness")
    assert "**It is not known if this is lossless: 1 of 2 outputs equal" in lossless
    assert "differing, cannot be judged: 1.**" in lossless
    assert "Not judged, because nothing is known." in lossless
    assert "scored 1 outputs again for this, which took it 2.50 s and 80 forwards" in lossless
    assert "DIFFERS, CANNOT BE JUDGED: 1 of 2" in text
    assert "NOT LOSSLESS" not in text


def test_what_a_lossy_rule_lets_differ_is_not_called_wrong(records, baseline):
    checks = [
        Losslessness(r.request_id, "error" if r.request_id == "q3" else "identical")
        for r in records
    ]
    run = make_run(config=make_run()["config"] | {"lossy": "typical"})
    report = render(run, summary_of(records, baseline, counted(checks) | {"lossy": True}), records)
    verdict = "Lossy by the rule typical: 29 of 30 outputs equal autoregressive output token for token; 1 differ."
    assert verdict in section(report, "Losslessness")
    assert "LOSSY VERIFICATION: typical" in report
    assert "NOT LOSSLESS" not in report


@pytest.mark.parametrize(
    ("drafter", "how"), [("slem", "drafts text"), ("model", "drafts only those")]
)
def test_two_vocabularies_are_explained_as_the_drafter_joins_them(records, drafter, how):
    models = {"target": {"name": "one"}, "draft": {"name": "two", "shared_vocabulary": 0.798}}
    report = render(
        make_run(models=models, options={"drafter": drafter}), summary_of(records), records
    )
    caution = next(line for line in report.splitlines() if "DIFFERENT VOCABULARIES" in line)
    assert "shares 79.8% of the target's tokens" in caution
    assert how in caution


def test_ties_alone_are_lossless_up_to_rounding(records, baseline):
    checks = [Losslessness("q0", "identical"), Losslessness("q1", "tie", 5, 99, 15, 2e-6)]
    report = render(make_run(), summary_of(records, baseline, counted(checks)), records)
    assert "**Lossless up to rounding: 1 of 2 outputs equal" in report
    assert "NOT LOSSLESS" not in report


def test_long_lists_are_cut_with_a_count(records, baseline):
    checks = [Losslessness(f"q{i}", "tie", 5, 99, 15, 2e-6) for i in range(25)]
    report = render(make_run(), summary_of(records, baseline, counted(checks)), records)
    assert "| q19 | tie |" in report
    assert "| q20 | tie |" not in report
    assert "and 5 more." in report


def test_categories_positions_and_phases(records, baseline):
    summary = summary_of(records, baseline)
    report = render(make_run(), summary, records)
    assert cells(section(report, "By category"), "code")[1] == "10"
    first = summary["overall"]["acceptance_at"][0]
    assert cells(section(report, "Acceptance by position"), "1")[1] == f"{100 * first:.1f}%"
    phases = section(report, "Where the time goes")
    # 8 ms of 24.5 ms.
    assert cells(phases, "draft")[1] == "4.80 s (32.7%)"
    assert cells(phases, "verify")[2].endswith("(100.0%)")
    assert "| link |" not in phases


def test_positions_that_were_never_accepted_are_named_and_not_listed():
    records = simulate_chain(requests=3, rounds=4, draft=20, alpha=0.3)
    report = render(make_run(), summary_of(records), records)
    assert re.search(r"No round accepted more than \d of up to 20 draft positions\.", report)
    assert "\n| 20 |" not in report


def test_the_example_is_shortened_and_safely_fenced(records):
    records[0].text = "```python\nprint(1)\n```\n" + "x" * 1000
    records.insert(0, failed_record("first"))
    report = render(
        make_run(),
        summary_of(records),
        records,
        decode=lambda ids: f"start {'y' * 500} prompt {ids}",
    )
    example = section(report, "Example: request `q0`")
    assert "prompt [1, 2]\n```" in example
    assert "start" not in example
    assert "````text\n```python\nprint(1)\n```\nxxx" in example
    assert "x…\n````" in example


def test_sampled_runs_are_not_compared_token_by_token(records, baseline):
    run = make_run()
    run["config"] |= {"temperature": 0.8, "top_p": 0.9, "top_k": 50}
    longer = [structs.replace(record, output_ids=[*record.output_ids, 9]) for record in baseline]
    report = render(run, summary_of(records, longer), records)
    assert (
        cells(section(report, "What was run"), "sampling")[1]
        == "temperature 0.8, top-p 0.9, top-k 50, seed 7"
    )
    assert "Not compared with greedy output: outputs were sampled" in section(
        report, "Losslessness"
    )
    assert "so the speedup is of times per token" in section(report, "Results")


def test_every_number_is_defined(records, baseline):
    summary = summary_of(records, baseline)
    defined = (
        {m.name for m in METRICS}
        | {distribution.name for distribution in DISTRIBUTIONS}
        | set(LISTS)
    )
    assert set(summary["overall"]) <= defined
    report = render(make_run(), summary, records)
    definitions = report[report.index("<summary>Definitions") :]
    assert all(f"- `{name}`: " in definitions for name in summary["overall"])


def test_provenance_names_hashes_versions_and_command(records):
    report = render(make_run(git_dirty=True), summary_of(records), records)
    provenance = report[report.index("<summary>Provenance") :]
    assert cells(provenance, "target hash")[1] == f"`{'ab' * 32}`"
    assert cells(provenance, "git commit")[1] == "`0123456789abcdef with uncommitted changes`"
    assert cells(provenance, "torch")[1] == "`2.13.0`"
    assert "skit bench --method fixed-k:k=4 --out 'my results'" in provenance


def test_tables_are_well_formed(records, baseline):
    records.append(failed_record("q30", "a | b"))
    report = render(make_run(), summary_of(records, baseline, identical(records)), records)
    tables = re.findall(r"(?:^\|.*\|\n)+", report, re.MULTILINE)
    assert len(tables) >= 8
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_a_run_in_which_nothing_finished_still_has_a_report():
    records = [failed_record("a"), failed_record("b")]
    report = render(make_run(), summary_of(records, records), records)
    assert "**No request finished.**" in report
    assert "FAILED REQUESTS: 2 of 2" in report


def test_a_bare_run_description_is_enough(records):
    assert "unnamed dataset" in render({}, summary_of(records), records)
