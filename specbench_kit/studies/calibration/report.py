"""What a calibration says: the fitted numbers, and how simulated times compare with measured ones."""

from specbench_kit.reports.document import Block, Paragraph, Table
from specbench_kit.studies.calibration.run import Calibration

TITLES = {
    "law": "analytic model, before the fit",
    "silicon": "silicon, measured kernels",
    "calibrated": "calibrated",
}


def blocks(outcome: Calibration) -> list[Block]:
    """Return the numbers and a table of the requests that were not fitted: simulated over measured."""
    speed, profile = outcome.speed, outcome.profile
    numbers = (
        f"**{profile.model} on {profile.device}: {speed.compute:.0%} of the peak, {speed.bandwidth:.0%} of the "
        f"bandwidth, {1e3 * speed.step_s:.2f} ms a step and {1e6 * speed.request_s:.0f} us a request besides.**"
    )
    metrics = [metric.metric for metric in outcome.agreements["calibrated"]]
    columns = [title for metric in metrics for title in (f"mean {metric}", "P95")]
    rows = [
        (title, *(f"{value:.2f}" for metric in outcome.agreements[name] for value in (metric.mean, metric.tail)))
        for name, title in TITLES.items()
        if name in outcome.agreements
    ]
    title = f"simulated over measured, all requests after the first {outcome.fitted}"
    return [Paragraph(numbers), Paragraph(title), Table(("", *columns), rows)]
