from io import StringIO

import pytest
from report_builders import autoregressive_like, make_run, simulate_chain, summary_of
from rich.console import Console

from specbench_kit.metrics.losslessness import Losslessness, summarise_checks
from specbench_kit.reports.comparison.terminal import print_comparison
from specbench_kit.reports.run.terminal import print_summary


@pytest.fixture
def summaries():
    records = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
    checks = [Losslessness(r.request_id, "identical") for r in records]
    fixed = summary_of(records, autoregressive_like(records), summarise_checks(checks))
    checks[0] = Losslessness("q0", "error", 1, 2, 3, 0.5)
    wrong = fixed | {"method": "threshold:threshold=0.4[b]", "lossless": summarise_checks(checks)}
    return [fixed, wrong]


def printed(summaries, width, **run):
    console = Console(file=StringIO(), width=width)
    print_summary(console, make_run(**run), summaries)
    return console.file.getvalue()


def test_one_table_has_the_baseline_and_every_method(summaries):
    lines = printed(summaries, 140).splitlines()
    rows = {line.split()[0]: line for line in lines[1:-1] if line.strip()}
    assert "1.00" in rows["autoregressive"]
    assert "10/10" in rows["fixed-k:k=4"]
    assert rows["threshold:threshold=0.4[b]"].endswith(" 9/10")
    assert rows["1"].split() == ["1", "WRONG"]
    assert f"{summaries[0]['overall']['speedup']:.2f}x (" in rows["fixed-k:k=4"]
    assert sum(line.startswith("autoregressive") for line in lines) == 1
    assert "measured time" in lines[0]


def test_a_speedup_over_few_prompts_is_said_to_tell_nothing():
    records = simulate_chain(requests=3, rounds=20, draft=4, alpha=0.7)
    summary = summary_of(records, autoregressive_like(records))
    assert f"fixed-k:k=4: {summary['overall']['speedup']:.2f}x, too few prompts to tell" in printed([summary], 140)


def test_cautions_name_their_method_and_those_of_the_setting_come_once(summaries):
    dataset = make_run()["dataset"] | {"source": "sample"}
    text = printed(summaries, 140, dataset=dataset)
    assert text.count("SAMPLE DATA") == 1
    assert "threshold:threshold=0.4[b]: NOT LOSSLESS" in text
    assert "fixed-k:k=4: NOT LOSSLESS" not in text


def test_eighty_columns_lose_nothing(summaries):
    text = printed([summaries[0] | {"method": "threshold:threshold=0.4,max_draft=20,schedule=constant"}], 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    baseline = next(line for line in text.splitlines() if line.startswith("autoregressive "))
    assert "1.00" in baseline
    assert "10/10" in text
    folded = "".join(line.split()[0] for line in text.splitlines() if not line.startswith(" "))
    assert "threshold:threshold=0.4,max_draft=20,schedule=constant" in folded


def test_a_comparison_fits_eighty_columns_and_says_what_intervals_show(comparison):
    console = Console(file=StringIO(), width=80)
    print_comparison(console, comparison)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(comparison.overall) <= set(rows)
    assert f"{comparison.overall['threshold']['speedup']:.2f}x (" in rows["threshold"]
    assert rows["threshold"].endswith("12/12")
    assert f"{comparison.reference} *" in "\n".join(lines)
    speeds = [comparison.overall[name].get("speedup", 1.0) for name in rows if name in comparison.overall]
    assert speeds == sorted(speeds, reverse=True)
    assert {"tok/s", "TPOT"} <= set(" ".join(lines).split())
    text = " ".join(" ".join(lines).split())
    assert f"{comparison.reference}: {comparison.overall[comparison.reference]['speedup']:.2f}x the speed" in text
    assert "slower" in text
