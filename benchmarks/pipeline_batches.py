"""Measure requests that share a pipeline: throughput and time between tokens by batch size, against plain decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.common import Bound, Figure, Outcome, Runners, Setting
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.pipeline import summarise_pipeline, time_between_tokens
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.papers.quoted import SPECPIPE_BATCH_TBT, SPECPIPE_BATCH_THROUGHPUT
from specbench_kit.reports.document import code
from specbench_kit.reports.render_markdown import table
from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.reports.writing.palette import method_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEPLOYMENT, PLAIN, SPECPIPE = "specpipe", "pp-microbatch", "specpipe"
SIZES = (1, 2, 4, 8, 16, 32)
METHODS = (
    SPECPIPE,
    "specpipe:share=greedy",
    "specpipe:budget=request",
    "specpipe:prefill=first",
    PLAIN,
    "pipeline-ar",
    "specinfer",
)
FEWEST = 8
"""Smallest number of requests; large batches get two requests per slot, so that slots are reused."""

Points = Mapping[str, Sequence[Metrics]]
"""Metrics by method, one for each batch size."""


@dataclass(frozen=True)
class _Bench:
    setting: Setting
    runners: Runners

    def measure(self, spec: str, size: int) -> Metrics:
        """Return the metrics of decoding `size` requests together, in modelled time."""
        requests = self.requests(size)
        records, seconds = self.setting.decode(
            self.runners, spec, requests, batch_size=size, deployment=find(DEPLOYMENT).build()
        )
        tokens = sum(len(record.output_ids) for record in records)
        pipeline = parse_method(spec).pipeline
        filled = summarise_pipeline(records, pipeline.stages) if pipeline else {"hit_rate": None}
        answers = {record.request_id: record.output_ids for record in records}
        return {
            "throughput": tokens / seconds,
            "hit_rate": filled["hit_rate"],
            "answers": answers,
            **time_between_tokens(records),
        }

    def requests(self, size: int) -> list[Request]:
        """Return the setting's requests, repeated until there are enough for a batch of `size`."""
        count, requests = max(FEWEST, 2 * size), self.setting.requests
        return [replace(requests[n % len(requests)], id=f"{n:03}") for n in range(count)]


def run(setting: Setting) -> Outcome:
    """Decode with the pair in the deployment's time; the output must not depend on method or batch size."""
    in_flight = max(pipeline.nodes for spec in METHODS if (pipeline := parse_method(spec).pipeline))
    sizes = {"slots": max(SIZES), "max_new_tokens": setting.max_new_tokens + in_flight}
    bench = _Bench(setting, setting.runners(setting.executor_names[0], **sizes))
    points = {spec: [bench.measure(spec, size) for size in SIZES] for spec in METHODS}
    figures = [figure for spec in METHODS for figure in _figures(spec, points[spec])]
    title = f"Batches in a pipeline of 8 stages, time as in the deployment {DEPLOYMENT}"
    published = (
        f"SpecPipe's paper over PP-vLLM from 2 requests on: throughput {_range(SPECPIPE_BATCH_THROUGHPUT)}, "
        f"time between tokens {_range(SPECPIPE_BATCH_TBT)} lower"
    )
    drawn = draw(_picture(points), f"{setting}; deployment {DEPLOYMENT}", ("svg",))
    return Outcome(
        title,
        [*figures, *_gains(points), _different(points)],
        [published],
        {
            "pipeline_batches.svg": drawn["svg"],
            "pipeline_batches.md": _report(title, published, points).encode(),
        },
    )


def _figures(spec: str, metrics: Sequence[Metrics]) -> list[Figure]:
    return [
        Figure(f"{spec}, {size} at once: {name}", value, unit)
        for size, point in zip(SIZES, metrics, strict=True)
        for name, value, unit in (
            ("throughput", point["throughput"], "tokens/s"),
            *(
                (f"time between tokens, {key}", 1e3 * point[key], "ms")
                for key in ("mean", "p95", "p99")
            ),
        )
    ]


def _gains(points: Points) -> list[Figure]:
    """Return the gains of SpecPipe over plain decoding in microbatches, by batch size."""
    pairs = list(zip(SIZES, points[SPECPIPE], points[PLAIN], strict=True))
    speedups = [(size, own["throughput"] / plain["throughput"]) for size, own, plain in pairs]
    tbt_ratios = [(size, plain["mean"] / own["mean"]) for size, own, plain in pairs]
    return [
        *(Figure(f"{size} at once: throughput over {PLAIN}", gain, "x") for size, gain in speedups),
        *(
            Figure(f"{size} at once: {PLAIN}'s time between tokens over this", gain, "x")
            for size, gain in tbt_ratios
        ),
    ]


def _different(points: Points) -> Figure:
    """Return the number of answers that differ from those of plain decoding."""
    expected = {
        name: answer for point in points[PLAIN] for name, answer in point["answers"].items()
    }
    answers = [
        item for method in points.values() for point in method for item in point["answers"].items()
    ]
    wrong = sum(expected[name] != answer for name, answer in answers)
    return Figure("answers that differ", wrong, "", Bound(most=0))


def _report(title: str, published: str, points: Points) -> str:
    header = ["method", "at once", "tokens/s", "TBT mean", "TBT P95", "TBT P99", "hit rate"]
    rows = [
        [code(spec), size, f"{point['throughput']:.1f}", *_cells(point)]
        for spec, metrics in points.items()
        for size, point in zip(SIZES, metrics, strict=True)
    ]
    gains = [[figure.label, f"{figure.value:.2f} x"] for figure in _gains(points)]
    figure = "![Time between tokens and throughput](pipeline_batches.svg)"
    parts = [
        f"# {title}",
        table(header, rows),
        figure,
        table([f"{SPECPIPE} over {PLAIN}", ""], gains),
        published,
    ]
    return "\n\n".join(parts) + "\n"


def _cells(point: Metrics) -> list[str]:
    rate = point["hit_rate"]
    times = [f"{1e3 * point[key]:.1f} ms" for key in ("mean", "p95", "p99")]
    return [*times, "" if not rate else f"{rate:.1%}"]


def _picture(points: Points) -> Picture:
    def drawn(axes: "Axes") -> None:
        styles = method_styles({spec: spec for spec in points})
        for spec, metrics in points.items():
            style = styles[spec]
            x, y = (
                [point["throughput"] for point in metrics],
                [1e3 * point["mean"] for point in metrics],
            )
            axes.plot(
                x,
                y,
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=4,
                label=spec,
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="tokens per second",
            ylabel="time between tokens, mean (ms)",
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)

    note = f"One point for each of {', '.join(map(str, SIZES))} requests at once; lower and further right is better."
    return Picture("pipeline_batches", "Requests that share a pipeline", note, 4.0, drawn)


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:g} to {bounds[1]:g} x"
