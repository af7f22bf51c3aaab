"""What other tools call the kit's metrics: every name of ours in the table is a metric that reports or files have."""

import re
import runpy
from pathlib import Path

from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS
from specbench_kit.serving.figures import ResponseLatencies
from specbench_kit.studies.serving.simulation_grid import DISTRIBUTIONS as OF_SIMULATIONS
from specbench_kit.studies.serving.simulation_grid import RATES

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "other_names.py"))
OTHER_NAMES, SOURCES, OtherNames = SCRIPT["OTHER_NAMES"], SCRIPT["SOURCES"], SCRIPT["OtherNames"]


def test_every_metric_of_the_table_exists() -> None:
    metric_names = {metric.name for metric in METRICS} | {
        *(distribution.name for distribution in DISTRIBUTIONS),
        *OF_SIMULATIONS,
        *ResponseLatencies.__struct_fields__,
        *RATES,
    }
    names = [match for entry in OTHER_NAMES for match in re.findall(r"`(\w+)`", entry.ours)]
    assert len(names) == len(OTHER_NAMES) == len(set(names))
    assert set(names) <= metric_names


def test_the_words_of_the_papers_that_mean_another_thing_are_told_apart() -> None:
    """Acceptance, wasted time and goodput each have two definitions, under two names of ours."""
    assert len(SOURCES) == len(OtherNames._fields)
    by_name = {entry.ours.split("`")[1]: entry for entry in OTHER_NAMES}
    assert "acceptance rate" in by_name["draft_efficiency"].wisp
    assert not by_name["acceptance_rate"].wisp
    assert "Eq. 8" in by_name["wdt_paper"].wisp
    assert not by_name["wdt"].wisp
    assert by_name["throughput"].wisp.startswith("goodput")
    assert "Eq. 5" in by_name["acceptance_length"].wisp
    assert "Eq. 5" in by_name["expected_accepted_length"].wisp
