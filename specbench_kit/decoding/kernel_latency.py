"""Predicts how long a forward takes from measured times of its kernels."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from specbench_kit.decoding.latency import (
    BatchSums,
    GraphSteps,
    LatencyModel,
    beside_host_s,
    in_graphs,
)

Origin = Literal["silicon", "interpolated", "law"]
"""The origin of a figure: a measured shape, one between measured shapes, or one beyond them."""
Curve = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KernelTables:
    """Seconds of the kernels of one model on one card, or on several that share it, by the work of
    a step.

    `tokens_s` are those of all matrices, norms and reductions for so many new `tokens`, `rows_s` those of the output
    layer for so many `rows` of logits. `decode_s` are those of attention for one new token of each of so many
    `requests` (rows of the table) after so many cached tokens (`contexts`, columns). Attention of several new tokens
    takes `attention_s`, and `lengths_s` for each new token that attends to so many tokens (`lengths`).
    """

    tokens: Curve
    tokens_s: Curve
    rows: Curve
    rows_s: Curve
    requests: Curve
    contexts: Curve
    decode_s: tuple[Curve, ...]
    lengths: Curve
    lengths_s: Curve
    attention_s: float

    def __post_init__(self) -> None:
        for name, grid, values in (
            ("tokens", self.tokens, self.tokens_s),
            ("rows", self.rows, self.rows_s),
            ("requests", self.requests, self.decode_s),
            ("lengths", self.lengths, self.lengths_s),
            *(("contexts", self.contexts, row) for row in self.decode_s),
        ):
            if (
                len(grid) < 2
                or len(grid) != len(values)
                or any(low >= high for low, high in pairwise(grid))
            ):
                raise ValueError(
                    f"kernels: {name} must be two or more rising numbers, each with its seconds"
                )
        numbers = (
            *self.tokens_s,
            *self.rows_s,
            *self.lengths_s,
            *(cell for row in self.decode_s for cell in row),
        )
        if min(numbers) < 0 or not min(self.tokens_s) > 0 or self.attention_s < 0:
            raise ValueError("kernels: seconds must not be negative, and a forward must take time")

    def scaled(self, factor: float) -> "KernelTables":
        """Return the tables of kernels that take `factor` times as long."""
        return replace(
            self,
            tokens_s=_times(self.tokens_s, factor),
            rows_s=_times(self.rows_s, factor),
            decode_s=tuple(_times(row, factor) for row in self.decode_s),
            lengths_s=_times(self.lengths_s, factor),
            attention_s=factor * self.attention_s,
        )


@dataclass(frozen=True, slots=True)
class KernelModel(LatencyModel):
    """The sum of a step's kernels, each looked up in measured times.

    A batch is looked up by its sums: by its new tokens, its rows of logits, the mean context of its
    requests and the mean length of the requests that its new tokens belong to. Attention of several
    new tokens per request takes at least as long as that of one. The host takes time, and graphs pad
    steps, as in `RoundedModel`.
    """

    kernels: KernelTables
    host_request_s: float = 0.0
    host_s: float = 0.0
    overlap: float = 0.0
    graphs: GraphSteps = ()
    graphs_of_requests: bool = False

    @classmethod
    def of(cls, kernels: KernelTables, host: Mapping[str, float]) -> "KernelModel":
        """Return the model of kernels beside a host, without an engine's graphs."""
        return cls(kernels, **host)  # type: ignore[arg-type]

    def of_sums(self, sums: BatchSums) -> float:
        sums = self._padded(sums)
        if not sums.requests:
            return beside_host_s(self.kernels.tokens_s[0], self.host_s, self.overlap)
        card_s = self._matrices_s(sums) + self._output_s(sums) + self._attention_s(sums)
        return beside_host_s(
            card_s, self.host_s + self.host_request_s * sums.requests, self.overlap
        )

    def parts(self, sums: BatchSums) -> dict[str, float]:
        """Return the seconds of a step by what takes them."""
        sums = self._padded(sums)
        parts = {
            "matrices": self._matrices_s(sums),
            "output layer": self._output_s(sums),
            "attention": self._attention_s(sums),
        }
        return {**parts, "host": self.of_sums(sums) - sum(parts.values())}

    def origin(self, sums: BatchSums) -> Origin:
        """Return whether a step's time was measured, lies between measured ones, or beyond them."""
        sums = self._padded(sums)
        tables = self.kernels
        looked_up: list[tuple[Curve, float]] = [
            (tables.tokens, sums.linear),
            (tables.rows, sums.logit_rows),
        ]
        if sums.cached:
            looked_up += [
                (tables.requests, sums.requests),
                (tables.contexts, sums.cached / sums.requests),
            ]
        if sums.longest > 1:
            looked_up.append((tables.lengths, sums.interactions / sums.linear))
        if any(value > grid[-1] for grid, value in looked_up):
            return "law"
        # Lengths are no shape of their own: a price per pair holds for every number of pairs.
        return "silicon" if all(value in grid for grid, value in looked_up[:4]) else "interpolated"

    def scaled(self, factor: float) -> "KernelModel":
        """Return the model of kernels that take `factor` times as long; the host takes as long as
        before.
        """
        return replace(self, kernels=self.kernels.scaled(factor))

    def _padded(self, sums: BatchSums) -> BatchSums:
        return in_graphs(sums, self.graphs, of_requests=self.graphs_of_requests)

    def _matrices_s(self, sums: BatchSums) -> float:
        return _interpolate(self.kernels.tokens, self.kernels.tokens_s, sums.linear)

    def _output_s(self, sums: BatchSums) -> float:
        return _interpolate(self.kernels.rows, self.kernels.rows_s, sums.logit_rows)

    def _attention_s(self, sums: BatchSums) -> float:
        tables = self.kernels
        context = sums.cached / sums.requests
        index = _segment(tables.requests, sums.requests)
        below_s, above_s = (
            _interpolate(tables.contexts, row, context)
            for row in tables.decode_s[index : index + 2]
        )
        decode_s = _between(tables.requests, index, sums.requests, below_s, above_s)
        if sums.longest <= 1:
            return decode_s
        length = sums.interactions / sums.linear
        # A token attends to itself too, and to only half of the new ones on average.
        attended = (sums.pairs + sums.linear) / length
        return max(
            decode_s,
            tables.attention_s + attended * _interpolate(tables.lengths, tables.lengths_s, length),
        )


def _segment(grid: Sequence[float], value: float) -> int:
    """Return the index of the grid's step that a value lies in, of the first or last one if it lies
    outside.
    """
    return min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)


def _between(
    grid: Sequence[float], index: int, value: float, below_s: float, above_s: float
) -> float:
    """Return the seconds at a value, on a straight line; below the grid they are those at its first
    point.
    """
    share = (value - grid[index]) / (grid[index + 1] - grid[index])
    return below_s + max(share, 0.0) * (above_s - below_s)


def _interpolate(grid: Sequence[float], seconds: Sequence[float], value: float) -> float:
    """Return the seconds at a value; beyond the grid they go on rising as at its end."""
    index = _segment(grid, value)
    return _between(grid, index, value, seconds[index], seconds[index + 1])


def _times(seconds: Curve, factor: float) -> Curve:
    return tuple(factor * value for value in seconds)
