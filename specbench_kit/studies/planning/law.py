"""How many devices a replica can serve by the law alone: in milliseconds, to decide what is worth
simulating.

A server verifies batches of B rounds in T(B) seconds, one after the other. Each round of a device
takes d seconds of drafting and link, waits for half of the batch under way, and takes T(B): its
cycle lasts d + 1.5 T(B), and B (d + 1.5 T(B)) / T(B) devices are in such cycles. A pipeline of p
stages takes a batch every T(B) / p seconds, which stands for T(B) but in the round's own
verification. The estimate is the most devices for which responses with few accepted tokens, as many
as may not fall short, are still in time for the strictest class, and whose context fits into the
memory. The bound is what no scheduler beats: nobody waits, all responses are alike, and tokens go
where they are promised; memory is no bound, since contexts may take turns in it.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from specbench_kit.decoding.latency import BatchSums, LatencyModel
from specbench_kit.deployments.drafting_work import DRAFTER
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.lengths import Lengths
from specbench_kit.serving.round_sources import RoundSource, place_of
from specbench_kit.serving.scenario import Scenario

SAMPLES = 400
"""Responses that are drawn to learn how they differ."""
MOST_ROUNDS = 5000
HALVINGS = 12


@dataclass(frozen=True)
class Responses:
    """Responses of a source: rounds and tokens of each, and averages per round."""

    rounds: Floats
    outputs: Floats
    prompt: float
    output: float
    steps: float
    submitted: float

    def rounds_at(self, share: float) -> float:
        """Return the rounds per token of a response such that the share of others needs more."""
        return float(np.quantile(self.rounds, 1 - share)) / self.output

    @property
    def committed(self) -> float:
        """Mean tokens per round."""
        return self.output / float(self.rounds.mean())


def draw_responses(scenario: Scenario) -> Responses:
    """Return responses as the scenario's source makes them, always the same ones."""
    source: RoundSource = scenario.source
    random = np.random.default_rng(0)
    starts = source.begin(random.random(SAMPLES))
    prompts = _lengths(scenario.prompt_tokens, starts.prompt_tokens, random)
    outputs = _lengths(scenario.output_tokens, starts.output_tokens, random)
    typical = source.typical
    if scenario.system.drafting == "none":
        return Responses(outputs, outputs, float(prompts.mean()), float(outputs.mean()), 0.0, 0.0)
    remaining, cursor = outputs.copy(), starts.cursor
    rounds = np.zeros(SAMPLES)
    for _ in range(MOST_ROUNDS):
        open_ = remaining > 0
        if not open_.any():
            break
        written = outputs - remaining
        place = {"context": prompts + written, "output": written}.get(
            place_of(source) or "", cursor
        )
        drawn, cursor = source.rounds(place.astype(np.int64), random.random(SAMPLES))
        rounds += open_
        remaining = remaining - (drawn.accepted + 1)
    return Responses(
        rounds,
        outputs,
        float(prompts.mean()),
        float(outputs.mean()),
        typical.steps,
        typical.submitted,
    )


def _lengths(given: Lengths | None, recorded: Integers, random: np.random.Generator) -> Floats:
    if given is None:
        return np.maximum(recorded, 1).astype(np.float64)
    if isinstance(given, int):
        return np.full(SAMPLES, float(given))
    lengths: Floats = given.sample(random.random(SAMPLES)).astype(np.float64)
    return lengths


@dataclass(frozen=True)
class DeviceEstimate:
    """Devices that a replica serves by the law: as estimated, and at most; and the fastest promise
    to one device.

    `longest_rtt_s` is the round trip that alone makes as many responses late as may be, on a server that takes no time,
    and `hopeless_rtt_s` the one that makes twice as many late.
    """

    devices: float
    bound: float
    fastest: float
    longest_rtt_s: float
    hopeless_rtt_s: float


@dataclass(frozen=True)
class Law:
    """The law of one replica: its latency models, responses and limits."""

    scenario: Scenario
    responses: Responses
    epsilon: float

    def estimate(self) -> DeviceEstimate:
        """Return what the law says of the replica."""
        slo = self.scenario.slo
        strictest = max(range(len(slo.speeds)), key=lambda index: slo.speeds[index])
        # If all that may fall short are of the strictest class, so large a share of it may.
        share = min(self.epsilon / slo.shares[strictest], 0.5)
        cycle_s = 1 / (
            slo.speeds[strictest] * self._rounds_per_token(self.responses.rounds_at(share))
        )
        fair_cycle_s = 1 / (slo.mean_speed * self._rounds_per_token(1 / self.responses.committed))
        token_s = self._rounds_per_token(self.responses.rounds_at(share)) * self.cycle_s(1.0, 1.0)
        if not self._on_edge:
            token_s += self.scenario.deployment.link.rtt_s / self.responses.output
        return DeviceEstimate(
            min(self._most_devices(cycle_s, wait=1.5), self._fitting),
            self._most_devices(fair_cycle_s, wait=1.0) / (1 - self.epsilon),
            1 / token_s,
            self._longest_rtt_s(self.epsilon),
            self._longest_rtt_s(min(2 * self.epsilon, 1.0)),
        )

    def _longest_rtt_s(self, late_share: float) -> float:
        """Return the round trip that takes all the time of so large a share of responses, the
        shortest ones.

        A response made on the server crosses the link once, and one drafted at the edge in each
        round.
        """
        crossings = self.responses.rounds if self._on_edge else np.ones_like(self.responses.outputs)
        slo = self.scenario.slo
        allowed_s = np.concatenate(
            [self.responses.outputs / crossings / speed for speed in slo.speeds]
        )
        weights = np.repeat(slo.shares, len(crossings)) / len(crossings)
        order = np.argsort(allowed_s)
        place = int(np.searchsorted(np.cumsum(weights[order]), late_share, side="right"))
        return float(allowed_s[order[min(place, len(order) - 1)]])

    def _rounds_per_token(self, rounds: float) -> float:
        """Return rounds per token; a response made on the server pays for its crossing of the link
        as for a round.
        """
        return rounds + (0.0 if self._on_edge else 1 / self.responses.output)

    @property
    def _on_edge(self) -> bool:
        return self.scenario.system.drafting == "edge"

    @property
    def away_s(self) -> float:
        """Seconds of a round at the device and on the link."""
        if not self._on_edge:
            return 0.0
        deployment = self.scenario.deployment
        costs = self.scenario.source.costs
        return self.responses.steps * costs.token_s(deployment) + deployment.link.rtt_s

    def cycle_s(self, batch: float, wait: float) -> float:
        """Return the seconds of a round in batches of this size; it waits for `wait - 1` of those
        between batches.
        """
        waited = wait - 1.0 if self._on_edge else 0.0
        return self.away_s + (1.0 + waited / self._depth) * self.batch_s(batch)

    def capacity_factor(self, batch: float) -> float:
        """Return 1 + drafting time / verifying time of a server that drafts as well, in batches of
        this size.
        """
        return self.batch_s(batch) / self.verification_s(batch)

    @property
    def _depth(self) -> int:
        """Batches under way at a time."""
        return self.scenario.depth(self.scenario.pool[0])

    def batch_s(self, batch: float) -> float:
        """Return the mean seconds of a batch, with its share of prompts, and of drafting if the
        server drafts.
        """
        seconds = self.verification_s(batch)
        if self.scenario.system.drafting == "server":
            responses, costs = self.responses, self.scenario.source.costs
            context, prompts = self._context_and_prompts(batch)
            forwards = responses.steps / costs.tokens_per_forward
            latency = costs.latencies(self.scenario.deployment)[DRAFTER]
            seconds += forwards * _seconds(
                latency, batch, 1.0, context, prompts / forwards, responses.prompt
            )
        return seconds

    def verification_s(self, batch: float) -> float:
        """Return the mean seconds in which a batch is verified, with its share of prompts."""
        verifier, responses = self.scenario.deployment.verifier, self.responses
        context, prompts = self._context_and_prompts(batch)
        new = 1 + responses.submitted
        seconds = _seconds(verifier.latency, batch, new, context, prompts, responses.prompt)
        return seconds + verifier.transfers_s(round(batch * new + prompts * responses.prompt))

    def _context_and_prompts(self, batch: float) -> tuple[float, float]:
        """Return the mean context of a request in tokens, and how many requests of a batch come
        with their prompt.
        """
        responses = self.responses
        return (
            responses.prompt + responses.output / 2,
            batch * responses.committed / responses.output,
        )

    def _most_devices(self, cycle_s: float, wait: float) -> float:
        """Return the most devices whose rounds last no longer than a cycle."""
        if self.cycle_s(1.0, wait) > cycle_s:
            return 0.0
        low, high = 1.0, float(self.scenario.limits(self.scenario.pool[0]).requests)
        if self.cycle_s(high, wait) <= cycle_s:
            low = high
        for _ in range(HALVINGS if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self.cycle_s(middle, wait) <= cycle_s else (low, middle)
        # On a server, as many devices as are not in the batch wait for the next one.
        devices = low * self._depth * cycle_s / self.batch_s(low)
        think = self.scenario.arrivals
        responding_s = self.responses.output / self.responses.committed * cycle_s
        return devices * (1 + getattr(think, "think_s", 0.0) / responding_s)

    @property
    def _fitting(self) -> float:
        """The devices whose whole contexts fit into the memory at the same time."""
        tokens = self.scenario.memory.tokens
        return tokens / (self.responses.prompt + self.responses.output) if tokens < inf else inf


def _seconds(
    latency: LatencyModel, batch: float, new: float, context: float, prompts: float, prompt: float
) -> float:
    """Return the seconds of a mean batch: a sum of rounds, and of a broken number of prompts."""
    linear = batch * new + prompts * prompt
    pairs = batch * (new * context + new * (new - 1) / 2) + prompts * prompt * (prompt - 1) / 2
    interactions = batch * new * (context + new) + prompts * prompt * prompt
    sums = (
        linear,
        interactions,
        pairs,
        batch * context,
        batch * new + prompts,
        batch + prompts,
        max(2.0 * (new > 1), 1),
    )
    return latency.of_sums(BatchSums(*sums))  # type: ignore[arg-type]
