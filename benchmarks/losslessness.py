"""Test that the check of outputs in half precision distinguishes rounding from two faults of verification."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from benchmarks.common import AUTOREGRESSIVE, Bound, Figure, Outcome, Setting
from benchmarks.faults import Fault, accept_second, injected, swap_extra
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.evidence import GreedyChoice, ShapeJudge
from specbench_kit.metrics.losslessness import Losslessness, check_all
from specbench_kit.metrics.shapes import RecomputedLogits
from specbench_kit.models.pair import Pair, load_pair

DTYPES = ("bfloat16", "float16")
SCENES = (("fixed-k:k=4", 1, "local"), ("specedge", 1, "raspberry-pi"), ("fixed-k:k=4", 3, "local"))
"""Cases: method, batch size and deployment."""
FAULTS: dict[str, Fault] = {
    "accepts the second best": accept_second,
    "swaps the extra token": swap_extra,
}
NOTICED = Bound(least=95)


@dataclass(frozen=True)
class Reduced(Setting):
    """The setting with models of another number format."""

    dtype: str = "float32"

    @cached_property
    def pair(self) -> Pair:
        return load_pair(
            self.target, self.draft, device="cpu", dtype=self.dtype, executor="transformers"
        )


class Scenes:
    """The outputs of all cases in one number format, correct and faulty, and the verdicts of the check."""

    def __init__(self, setting: Reduced) -> None:
        self.setting = setting
        length = (
            max(len(request.prompt_ids) for request in setting.requests) + setting.max_new_tokens
        )
        self.runners = setting.pair.runners(3, length)
        self.shapes = RecomputedLogits(self.runners[0], setting.pair.target.model)
        self.plain = {
            size: self.decode(AUTOREGRESSIVE, size) for size in {size for _, size, _ in SCENES}
        }
        self.right = [self.decode(*scene) for scene in SCENES]

    def decode(self, method: str, size: int, deployment: str = "local") -> list[RequestRecord]:
        setting = self.setting
        return setting.decode(
            self.runners, method, setting.requests, size, deployment=load(deployment, ())
        )[0]

    def errors_of_right(self) -> Iterator[bool]:
        """Yield for every output of correct code if the check calls it an error."""
        for (_, size, _), records in zip(SCENES, self.right, strict=True):
            yield from (result.verdict == "error" for result in self.check(records, size))

    def noticed(self, fault: Fault) -> Iterator[bool]:
        """Yield for every output that the fault made wrong if the check calls it an error."""
        for scene, right in zip(SCENES, self.right, strict=True):
            with injected(fault):
                records = self.decode(*scene)
            plain, checks = self.plain[scene[1]], self.check(records, scene[1])
            for before, after, alone, result in zip(right, records, plain, checks, strict=True):
                if after.output_ids not in (before.output_ids, alone.output_ids):
                    yield result.verdict == "error"

    def check(self, records: list[RequestRecord], size: int) -> list[Losslessness]:
        judge = ShapeJudge(self.shapes, lambda _: GreedyChoice(), exact=True)
        return check_all(records, self.plain[size], judge)


def run(setting: Setting) -> Outcome:
    """Check every case in both half-precision formats, without a fault and with each."""
    figures = []
    for dtype in DTYPES:
        sizes = (
            setting.target,
            setting.draft,
            setting.prompts,
            setting.rounds,
            setting.max_new_tokens,
        )
        scenes = Scenes(Reduced(*sizes, dtype))
        errors = list(scenes.errors_of_right())
        figures.append(
            Figure(
                f"{dtype}: errors in {len(errors)} correct outputs", sum(errors), "", Bound(most=0)
            )
        )
        for name, fault in FAULTS.items():
            noticed = list(scenes.noticed(fault))
            label = f"{dtype}: {name}, noticed of {len(noticed)} wrong outputs"
            figures.append(Figure(label, 100 * sum(noticed) / max(1, len(noticed)), "%", NOTICED))
    return Outcome("Faults distinguished from rounding", figures)
