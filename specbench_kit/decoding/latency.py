"""Predicts how long a forward takes from what it has to compute."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, sqrt
from typing import ClassVar, NamedTuple, Protocol

Row = tuple[int, int]
"""One request's part of a forward: new tokens, and tokens in KV before them."""


def logit_rows_of(row: Row) -> int:
    """Return the number of logits rows that a forward must give: one per new token, but only the
    last of a prompt.
    """
    new, cached = row
    return new if cached else 1


class BatchSums(NamedTuple):
    """The work of one forward, summed over its requests.

    `linear` counts new tokens, `interactions` new x (cached + new), `pairs` each new token with every one before it,
    `cached` tokens in KV, `logit_rows` the logits that are needed. `longest` is the most new tokens of any request.
    """

    linear: int = 0
    interactions: int = 0
    pairs: int = 0
    cached: int = 0
    logit_rows: int = 0
    requests: int = 0
    longest: int = 0

    def plus(self, *rows: Row) -> "BatchSums":
        """Return the sums with these requests added."""
        linear, interactions, pairs, all_cached, logits, requests, longest = self
        for new, cached in rows:
            linear += new
            interactions += new * (cached + new)
            pairs += new * cached + new * (new - 1) // 2
            all_cached += cached
            logits += (
                new if cached else 1
            )  # as logit_rows_of, whose call would take as long as the rest of the loop
            if new > longest:
                longest = new
        return BatchSums(
            linear, interactions, pairs, all_cached, logits, requests + len(rows), longest
        )

    def longer(self, row: Row) -> "BatchSums":
        """Return the sums with one more new token of a request that they count as `row`."""
        new, cached = row
        return BatchSums(
            self.linear + 1,
            self.interactions + cached + 2 * new + 1,
            self.pairs + cached + new,
            self.cached,
            self.logit_rows + (1 if cached else 0),
            self.requests,
            max(self.longest, new + 1),
        )


NOTHING = BatchSums()


def sums_of(rows: Iterable[Row]) -> BatchSums:
    """Return the sums of a whole batch."""
    return NOTHING.plus(*rows)


class LatencyModel(Protocol):
    """Predicts the seconds of one forward from the sums of its batch.

    `additive` is true if each request adds its own seconds to those of an empty batch, whatever else is in it.
    """

    additive: ClassVar[bool] = False

    @property
    def most_new_tokens(self) -> int | None:
        """The largest number of a request's new tokens that the model distinguishes; None without a
        limit.
        """
        return None

    def of_sums(self, sums: BatchSums) -> float:
        """Return the seconds of a forward with these sums."""

    def seconds(self, rows: Sequence[Row]) -> float:
        """Return the seconds of a forward with these rows."""
        return self.of_sums(NOTHING.plus(*rows))


@dataclass(frozen=True, slots=True)
class InteractionModel(LatencyModel):
    """a * new + b_compute * interactions + b_read * cached + c, summed over the batch (WISP Eq. 18
    and 19).

    Seconds per new token, per pair of a new token and a token that it may attend to in full blocks
    of new x (cached + new), per cached token, and per forward.
    """

    a_s: float
    b_compute_s: float
    b_read_s: float
    c_s: float
    additive: ClassVar[bool] = True

    def of_sums(self, sums: BatchSums) -> float:
        requests_s = (
            self.a_s * sums.linear
            + self.b_compute_s * sums.interactions
            + self.b_read_s * sums.cached
        )
        return self.c_s + requests_s


@dataclass(frozen=True, slots=True)
class ContextModel(LatencyModel):
    """alpha * context + gamma * new + delta, summed over the batch (AdaSpec).

    The context of a new token is all that it attends to: the cached tokens and the new ones to its
    left.
    """

    alpha_s: float
    gamma_s: float
    delta_s: float
    additive: ClassVar[bool] = True

    def of_sums(self, sums: BatchSums) -> float:
        return self.delta_s + (self.alpha_s * sums.pairs + self.gamma_s * sums.linear)


@dataclass(frozen=True, slots=True)
class WorkModel(LatencyModel):
    """The sum of what a forward computes and moves, each part at its own price.

    Seconds per new token, per pair of a new token and one before it, per cached token, per row of
    logits, and per forward. Rows of logits are the output layer's work, which the other forms have
    no feature for.
    """

    token_s: float
    pair_s: float
    cached_s: float
    head_s: float
    forward_s: float
    additive: ClassVar[bool] = True

    def of_sums(self, sums: BatchSums) -> float:
        moved_s = (
            self.token_s * sums.linear + self.pair_s * sums.pairs + self.cached_s * sums.cached
        )
        return self.forward_s + (moved_s + self.head_s * sums.logit_rows)


GraphSteps = tuple[tuple[int, int], ...]
"""The sizes of captured graphs: up to each first number they are the multiples of the second."""


ENGINE = ("graphs", "graphs_of_requests")
"""The fields of a latency model that belong to an engine and never to a profile."""


def in_graphs(sums: BatchSums, steps: GraphSteps, *, of_requests: bool) -> BatchSums:
    """Return the sums of a step that is padded to the next larger captured graph.

    Graphs hold so many tokens, or so many requests with equally many tokens each. A step that is
    larger than all graphs is computed as it is, and so is one with a prompt, or with drafts of
    different lengths, where graphs are of requests.
    """
    if not steps or not sums.linear:
        return sums
    if of_requests and sums.linear != sums.longest * sums.requests:
        return sums
    size = sums.requests if of_requests else sums.linear
    multiple = next((multiple for most, multiple in steps if size <= most), 1)
    padded = multiple * ceil(size / multiple)
    if padded == size:
        return sums
    tokens = round(sums.linear * padded / size)
    # Tokens that pad a step have no requests to attend to, which must not change the mean length of
    # those that do.
    return sums._replace(
        linear=tokens, interactions=round(sums.interactions * tokens / sums.linear)
    )


def beside_host_s(card_s: float, host_s: float, overlap: float) -> float:
    """Return the seconds of a step of which `card_s` are the card's and `host_s` the host's.

    With an `overlap` of 1 the host prepares a step while the card computes another one, and the
    slower of the two decides; with 0 they wait for each other.
    """
    return card_s + host_s - overlap * min(card_s, host_s)


@dataclass(frozen=True, slots=True)
class RoundedModel(LatencyModel):
    """A roofline with a rounded corner: (operations^corner + traffic^corner)^(1/corner), and what
    idles besides.

    Operations take `token_s` per new token, `pair_s` per pair of a new token and one before it, and
    `head_s` per row of logits. Traffic takes `weights_s` per forward, `kv_s` per token of KV that
    is read or written, `state_s` per request whose state of fixed size is read and written, and
    `experts_s` if every expert of a mixture is read; each token leaves an expert out with
    probability `missed`. Layers that attend to no more than `window` tokens take
    `windowed_pair_s` and `windowed_kv_s` in place of `pair_s` and `kv_s`: a batch is known by its
    sums, so that the mean context of its requests, and the mean number of tokens before a new one,
    are what the window cuts. Where each of several cards has experts of its own, the
    card with the most experts to read decides, with a share of them that is `uneven` standard
    deviations of a single expert's odds above the mean. A step lasts `forward_s` longer, and
    `wide_s` more if any request has more than one new token; reductions and exchanges between cards
    take `reduced_s` per new token. An engine whose kernels multiply a matrix with one vector after
    the other up to `narrow` new tokens takes `narrow_token_s` for each beyond the first, and with
    other kernels `wider_s` for all steps with more. The host takes `host_s` per step and
    `host_request_s` per request, in parallel to the card as far as `overlap` says. An engine that
    captures graphs pads its steps to the next of their sizes, `graphs`.
    """

    token_s: float
    pair_s: float
    head_s: float
    weights_s: float
    kv_s: float
    forward_s: float
    wide_s: float = 0.0
    reduced_s: float = 0.0
    experts_s: float = 0.0
    host_request_s: float = 0.0
    host_s: float = 0.0
    missed: float = 0.0
    corner: float = 1.6
    overlap: float = 0.0
    uneven: float = 0.0
    windowed_pair_s: float = 0.0
    windowed_kv_s: float = 0.0
    window: float = 0.0
    state_s: float = 0.0
    narrow: float = 0.0
    narrow_token_s: float = 0.0
    wider_s: float = 0.0
    graphs: GraphSteps = ()
    graphs_of_requests: bool = False

    @classmethod
    def of(cls, coefficients: Mapping[str, float]) -> "RoundedModel":
        """Return the model of coefficients by name, without an engine's graphs."""
        return cls(**coefficients)  # type: ignore[arg-type]

    @property
    def coefficients(self) -> dict[str, float]:
        """The coefficients by name, without what belongs to an engine."""
        names = (field.name for field in fields(self) if field.name not in ENGINE)
        return {name: float(getattr(self, name)) for name in names}

    def of_sums(self, sums: BatchSums) -> float:
        sums = in_graphs(sums, self.graphs, of_requests=self.graphs_of_requests)
        rounded_s = (
            self.operations_s(sums) ** self.corner + self.traffic_s(sums) ** self.corner
        ) ** (1 / self.corner)
        card_s = rounded_s + self.forward_s + self.reduced_s * sums.linear + self.width_s(sums)
        return beside_host_s(
            card_s, self.host_s + self.host_request_s * sums.requests, self.overlap
        )

    def width_s(self, sums: BatchSums) -> float:
        """Return the seconds that a step takes longer for having more than one new token."""
        seconds = self.wide_s if sums.longest > 1 else 0.0
        if not self.narrow:
            return seconds
        if sums.linear > self.narrow:
            return seconds + self.wider_s
        return seconds + self.narrow_token_s * max(0, sums.linear - 1)

    def operations_s(self, sums: BatchSums) -> float:
        """Return the seconds of the operations if no memory were read."""
        operations_s = (
            self.token_s * sums.linear + self.pair_s * sums.pairs + self.head_s * sums.logit_rows
        )
        if self.windowed_pair_s:
            operations_s += self.windowed_pair_s * min(sums.pairs, self.window * sums.linear)
        return operations_s

    def traffic_s(self, sums: BatchSums) -> float:
        """Return the seconds of the traffic if nothing were computed."""
        experts_s = 0.0
        if self.experts_s:
            share = 1 - self.missed**sums.linear
            # How many of a card's experts are hit is binomial; no card has more to read than all of
            # its experts.
            experts_s = self.experts_s * min(1.0, share + self.uneven * sqrt(share * (1 - share)))
        moved_s = self.weights_s + experts_s + self.kv_s * (sums.linear + sums.cached)
        if self.windowed_kv_s:
            read = min(sums.cached, self.window * sums.requests)
            moved_s += self.windowed_kv_s * (sums.linear + read)
        return moved_s + self.state_s * sums.requests

    def parts(self, sums: BatchSums) -> dict[str, float]:
        """Return the seconds of a step by what takes them; operations and traffic share the rounded
        corner.
        """
        sums = in_graphs(sums, self.graphs, of_requests=self.graphs_of_requests)
        operations = self.operations_s(sums) ** self.corner
        traffic = self.traffic_s(sums) ** self.corner
        rounded_s = (operations + traffic) ** (1 / self.corner)
        share = operations / (operations + traffic) if operations else 0.0
        parts = {
            "operations": share * rounded_s,
            "traffic": (1 - share) * rounded_s,
            "idle": self.forward_s + self.width_s(sums),
            "reductions": self.reduced_s * sums.linear,
        }
        return {**parts, "host": self.of_sums(sums) - sum(parts.values())}

    def scaled(self, factor: float) -> "RoundedModel":
        """Return the model of a card that takes `factor` times as long; the host takes as long as
        before.
        """
        return replace(self, **{name: factor * getattr(self, name) for name in CARD_TERMS})


CARD_TERMS = (
    "token_s",
    "pair_s",
    "head_s",
    "weights_s",
    "kv_s",
    "forward_s",
    "wide_s",
    "reduced_s",
    "experts_s",
    "windowed_pair_s",
    "windowed_kv_s",
    "state_s",
    "narrow_token_s",
    "wider_s",
)
"""The coefficients of `RoundedModel` that are seconds of the card."""


@dataclass(frozen=True, slots=True)
class ScaledLatency(LatencyModel):
    """A latency model whose times are multiplied by a factor."""

    model: LatencyModel
    factor: float

    def of_sums(self, sums: BatchSums) -> float:
        """Return the seconds of a batch with these sums."""
        return self.factor * self.model.of_sums(sums)


@dataclass(frozen=True, slots=True)
class ServedModel(LatencyModel):
    """A server's verification, as the server measures it: the forward as in `WorkModel`, and the
    work around it.

    `request_s` are seconds per request, for its slot in KV and its commit; `forward_s` are seconds per batch.
    """

    token_s: float
    pair_s: float
    cached_s: float
    head_s: float
    request_s: float
    forward_s: float
    additive: ClassVar[bool] = True

    def of_sums(self, sums: BatchSums) -> float:
        moved_s = (
            self.token_s * sums.linear + self.pair_s * sums.pairs + self.cached_s * sums.cached
        )
        return self.forward_s + (
            moved_s + self.head_s * sums.logit_rows + self.request_s * sums.requests
        )


@dataclass(frozen=True, slots=True)
class LeapModel(LatencyModel):
    """A constant time for up to `tile` new tokens, and `leap_s` more for each further tile
    (SpecPipe, Figure 9).
    """

    forward_s: float
    leap_s: float
    tile: float

    def of_sums(self, sums: BatchSums) -> float:
        return self.forward_s + self.leap_s * max(0, ceil(sums.linear / self.tile) - 1)


@dataclass(frozen=True, slots=True)
class TableModel(LatencyModel):
    """Seconds by the largest number of new tokens of any request, from 1 up; the last entry serves
    all above.
    """

    by_new_tokens_s: tuple[float, ...]

    @property
    def most_new_tokens(self) -> int:
        return len(self.by_new_tokens_s)

    def of_sums(self, sums: BatchSums) -> float:
        return self.by_new_tokens_s[max(1, min(sums.longest, len(self.by_new_tokens_s))) - 1]
