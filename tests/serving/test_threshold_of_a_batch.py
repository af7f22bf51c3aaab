"""A simulated server stops all drafts of a batch together if the method does."""

from specbench_kit.serving.figures import look_up
from specbench_kit.studies.reproduction.decoding import simulate


def test_a_batch_stops_where_its_mean_surety_falls_below_the_threshold() -> None:
    """One device drafts tokens that are right with probability 0.6, which is also the reported confidence."""
    options = {
        "seeds": 1, "jobs": 1, "duration_s": 3.0, "warmup_s": 0.5, "devices": [1], "slo": ["1/s"],
        "system": ["adaspec"], "deployment": ["adaspec-7b-l40"], "acceptance": ["iid:alpha=0.6,length=6"],
        "method": ["threshold:unit=batch,threshold=0.7,max_draft=6", "threshold:unit=batch,threshold=0.5,max_draft=6"],
        "label": ["strict", "lax"], "prompt_tokens": 50, "output_tokens": 100,
    }  # fmt: skip
    sent = {
        row.series: look_up(row.figures, "figures.overall.submitted_per_verify")
        for row in simulate(options, lambda *_: None)
        if "figures" in row.figures
    }
    strict, lax = (sent[name]["mean"] for name in ("strict", "lax"))
    assert 0.9 < strict <= 1
    assert 5.5 < lax <= 6
