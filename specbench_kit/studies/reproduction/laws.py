"""Experiments of the commands `law` and `profile`, which neither decode nor simulate.

A law is the closed form of a number that a paper prints; a profile is fitted to its own times with
noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log, log1p
from statistics import fmean

import numpy as np
from msgspec import to_builtins

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import convert
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.methods.specedge import calibrated_depth
from specbench_kit.models.executors.agreement import LEAST, Agreement
from specbench_kit.papers.experiment import SeedOptions, series_of
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.base import model_of
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.fit import Fit, Observation, fit
from specbench_kit.profilers.loading import load
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import KERNELS, find_software
from specbench_kit.profilers.workload import verification
from specbench_kit.serving.round_sources import acceptance_rate_of
from specbench_kit.studies.reproduction.averages import Rows, averaged
from specbench_kit.studies.reproduction.edge_rounds import (
    edge_over_plain,
    edge_round_rate,
    forward_s,
    tree_s,
)
from specbench_kit.studies.reproduction.inputs import SEEDS
from specbench_kit.studies.reproduction.selection import (
    selected_drafter,
    selected_length,
    selected_length_on_trace,
)

POSITIONS = 1000
"""Positions over which the probability of the target's top token is averaged."""
HOUR_S = 3600
GIB = 2**30


def speedup(drafted: float, accepted: float, draft_cost: float) -> float:
    """Return the speedup over plain decoding if each drafted token costs `draft_cost` of a plain
    step.

    The cost includes its verification; `drafted` and `accepted` are averages per round.
    """
    return (1 + accepted) / (1 + drafted * draft_cost)


def pipeline_s(pass_s: float, stages: int, hit_rate: float, more_s: float = 0.0) -> float:
    """Return the time between tokens of a pipeline, in seconds.

    The next token is already in flight with probability `hit_rate`; a miss has to pass through the other stages again.
    `more_s` is added to each step of `pass_s / stages`.
    """
    return (pass_s / stages + more_s) * (1 + (1 - hit_rate) * (stages - 1))


def pipeline_speedup(
    stages: int, hit_rate: float, slowest: float = 1.0, more: float = 0.0
) -> float:
    """Return how many times shorter a pipeline's time between tokens is than that of a pass through
    its stages.

    `slowest` is the longest stage and `more` is the time added to each step, both as shares of the mean stage.
    """
    return stages / ((slowest + more) * (1 + (1 - hit_rate) * (stages - 1)))


def top_token_frequency(surety: float, temperature: float, top_p: float, top_k: int) -> float:
    """Return how often sampling draws the target's most probable token.

    `surety` is the mean probability of that token at temperature 1. It varies over positions as in a synthetic pair of
    spread 1; at each position the probabilities of the other tokens form a geometric series.
    """
    agreement = Agreement((surety,), spread=1.0)
    probabilities = (
        agreement.chance((position + 0.5) / POSITIONS) for position in range(POSITIONS)
    )
    frequencies = []
    for probability in probabilities:
        # At temperature T a geometric series with factor q becomes one with factor q^(1/T).
        factor = min(max(LEAST, 1 - probability), 1 - LEAST) ** (1 / temperature)
        top_k_mass = 1 - factor**top_k
        kept = min(top_k, max(1, ceil(log1p(-top_p * top_k_mass) / log(factor))))
        frequencies.append((1 - factor) / (1 - factor**kept))
    return fmean(frequencies)


def sampling_slowdown_percent(
    stages: int,
    hit_rate: float,
    held: float,
    surety: float,
    temperature: float,
    top_p: float,
    top_k: int,
) -> float:
    """Return by how many percent sampling makes a pipeline's token slower than greedy decoding.

    The target's most probable token is in flight with probability `hit_rate`, any other token with
    `held`.
    """
    top = top_token_frequency(surety, temperature, top_p, top_k)
    sampled_s = pipeline_s(1.0, stages, top * hit_rate + (1 - top) * held)
    return 100 * (sampled_s / pipeline_s(1.0, stages, hit_rate) - 1)


def rate(tokens: float, seconds: float) -> float:
    """Return tokens per second."""
    return tokens / seconds


def per_dollar(tokens_per_s: float, price_per_hour: float) -> float:
    """Return thousands of tokens per dollar."""
    return HOUR_S * tokens_per_s / price_per_hour / 1e3


def round_rate(tokens: float, verify_s: float, steps: int = 0, step_s: float = 0.0) -> float:
    """Return tokens per second of rounds with `steps` draft forwards and one verification."""
    return tokens / (verify_s + steps * step_s)


def acceptance_length_at(levels: int, tokens: float, of_levels: int) -> float:
    """Return the acceptance length of trees with `levels` levels.

    Every level is accepted with the same probability, the one at which `of_levels` levels give
    `tokens`.
    """
    return _round_moments(_level_acceptance(tokens, of_levels), levels)[0]


def acceptance_length_sd_at(levels: int, tokens: float, of_levels: int) -> float:
    """Return the standard deviation over rounds that goes with `acceptance_length_at`."""
    return _round_moments(_level_acceptance(tokens, of_levels), levels)[1]


def speedup_after(speedup: float, before_s: float, after_s: float) -> float:
    """Return the speedup over the same baseline after a duration has changed from `before_s` to
    `after_s`.
    """
    return speedup * before_s / after_s


def turn_s(tokens_per_s: float, clients: int) -> float:
    """Return the seconds between two tokens of one client if `clients` share a rate."""
    return clients / tokens_per_s


def lone_client_s(tokens: float, tokens_per_s: float, rtt_s: float, draft_s: float) -> float:
    """Return the seconds between two tokens of a client that has the server for itself.

    A round is the verification, which is `tokens / tokens_per_s` of a server that does nothing
    else, the round trip, and the drafting that is not hidden behind both.
    """
    return (tokens / tokens_per_s + rtt_s + draft_s) / tokens


def acceptance_after_filter(acceptance: float, recall: float, specificity: float) -> float:
    """Return the acceptance rate of the tokens that a predictor lets pass."""
    accepted = acceptance * recall
    rejected = (1 - acceptance) * (1 - specificity)
    return accepted / (accepted + rejected)


def acceptance_of_chain(
    acceptance: float, recall: float, specificity: float, longest: int, sent: bool
) -> float:
    """Return the share of drafted, or of `sent`, tokens that is accepted when a predictor ends
    drafts of `longest`.

    `acceptance` is that share of drafts that are always `longest`, from which the acceptance of a token follows. A
    draft ends at the first token that the predictor holds back; that token is drafted and not sent.
    """
    right = acceptance_rate_of(acceptance * longest, longest)
    passed = right * recall + (1 - right) * (1 - specificity)
    accepted = sum((right * recall) ** place for place in range(1, longest + 1))
    first = 1 if sent else 0
    return accepted / sum(passed**place for place in range(first, longest + first))


def share(part: float, whole: float) -> float:
    """Return a part as a share of the whole."""
    return part / whole


def stage_gib(model: str, layers: int, heads: int, tokens: int, more_gib: float) -> float:
    """Return the memory of a pipeline stage in GiB, in half precision.

    It holds `layers` layers with the KV of `tokens` tokens, `heads` vocabulary tables, and
    `more_gib` of other data.
    """
    card = bundled_architectures()[model]
    layer_numbers = (card.layer_parameters + card.kv_numbers * tokens) * layers / card.layers
    return 2 * (layer_numbers + heads * card.head_parameters) / GIB + more_gib


def joint_prefill_by_profile(profile: str, new: int, beside_new: int, beside_cached: int) -> float:
    """Return how many times longer a prompt of `new` tokens takes if another request shares its
    batch, by a profile.
    """
    latency = load(profile)
    return _joint_over_alone(
        model_of(latency.form, latency.coefficients), new, (beside_new, beside_cached)
    )


def joint_prefill_by_data_sheet(
    model: str, device: str, cards: int, dtype: str, new: int, beside_new: int, beside_cached: int
) -> float:
    """Return the ratio of `joint_prefill_by_profile` by the data sheet of `cards` cards that share
    the model.

    Kernels are as fast as measured ones on average, and reductions between the cards take no time.
    """
    roofline = Roofline(
        find_device(device).combined(cards), bundled_architectures()[model], dtype, cards
    )
    return _joint_over_alone(
        roofline.estimate(find_software(KERNELS)), new, (beside_new, beside_cached)
    )


LAWS: Mapping[str, Callable[..., float]] = {
    "depth": calibrated_depth,
    "speedup": speedup,
    "pipeline_s": pipeline_s,
    "pipeline_speedup": pipeline_speedup,
    "drawn_longer": sampling_slowdown_percent,
    "rate": rate,
    "per_dollar": per_dollar,
    "round_rate": round_rate,
    "tokens_at": acceptance_length_at,
    "tokens_sd_at": acceptance_length_sd_at,
    "speedup_after": speedup_after,
    "turn_s": turn_s,
    "lone_client_s": lone_client_s,
    "filtered": acceptance_after_filter,
    "filtered_chain": acceptance_of_chain,
    "share": share,
    "stage_gib": stage_gib,
    "beside_profile": joint_prefill_by_profile,
    "beside_data_sheet": joint_prefill_by_data_sheet,
    "tree_s": tree_s,
    "forward_s": forward_s,
    "edge_round_rate": edge_round_rate,
    "edge_over_plain": edge_over_plain,
    "selected_drafter": selected_drafter,
    "selected_length": selected_length,
    "selected_length_on_trace": selected_length_on_trace,
}
"""Closed forms by the names that experiments use; the parameters are keys of an experiment's
file.
"""


def law(options: OptionValues, report: CountCallback) -> Rows:
    """Return the value of every series: its `law`, called with the other keys of the series."""
    rows: Rows = []
    for label, entry in series_of(options).items():
        arguments = dict(entry)
        name = str(arguments.pop("law"))
        require(name in LAWS, f"unknown law '{name}'; known: {', '.join(LAWS)}")
        try:
            value = float(LAWS[name](**arguments))
        except (ArithmeticError, TypeError, ValueError) as error:
            # Changed inputs may be any numbers: a divisor of zero, or half a level.
            given = ", ".join(f"{key}={value}" for key, value in arguments.items())
            raise SkitError(f"{label}: {name} has no value at {given} ({error})") from error
        rows.append(FigureRow(label, {}, {"value": {"mean": value}}))
    report(len(rows), len(rows))
    return rows


def _joint_over_alone(latency: LatencyModel, new: int, neighbour: Row) -> float:
    return latency.seconds([(new, 0), neighbour]) / latency.seconds([(new, 0)])


def _round_moments(acceptance: float, levels: int) -> tuple[float, float]:
    """Return mean and standard deviation of a round's tokens if every level is accepted with the
    same probability.
    """
    mean = sum(acceptance**level for level in range(levels + 1))
    square = sum((2 * level + 1) * acceptance**level for level in range(levels + 1))
    return mean, max(0.0, square - mean**2) ** 0.5


def _level_acceptance(tokens: float, levels: int) -> float:
    """Return the acceptance probability at which `levels` levels give `tokens` tokens a round."""
    require(
        1 <= tokens <= levels + 1,
        f"{levels} levels bring 1 to {levels + 1} tokens a round, not {tokens:g}",
    )
    return acceptance_rate_of(tokens - 1, levels)


@dataclass(frozen=True)
class NoisyProfile:
    """A profile whose times of WISP's 173 configurations carry normal noise.

    `noise_s` is the standard deviation in seconds; `noise_share` adds noise in proportion to each time.
    """

    profile: str
    noise_s: float
    noise_share: float = 0.0

    def fit(self, seed: int) -> Fit:
        """Return a fit of the profile's own form to one draw of noisy times."""
        profile = load(self.profile)
        random = np.random.default_rng(seed)
        model = model_of(profile.form, profile.coefficients)
        times = [
            (configuration, model.seconds(configuration.rows)) for configuration in verification()
        ]
        noise = random.normal(size=(len(times), 2))
        observations = [
            Observation(
                configuration, max(0.0, seconds + a * self.noise_s + b * self.noise_share * seconds)
            )
            for (configuration, seconds), (a, b) in zip(times, noise, strict=True)
        ]
        return fit(profile.form, observations, seed)


def profile(options: OptionValues, report: CountCallback) -> Rows:
    """Return what the fits of every series find, averaged over `seeds` draws, with the widths of
    their intervals.
    """
    rows: Rows = []
    series = series_of(options)
    for done, (label, entry) in enumerate(series.items()):
        report(done, len(series))
        descriptions = []
        for seed in range(SeedOptions.of(options).seeds or SEEDS):
            fitted = convert(NoisyProfile, entry).fit(seed)
            widths = {name: high - low for name, (low, high) in fitted.intervals.items()}
            described = to_builtins(fitted.describe())
            parts = ("coefficients", "train", "test", "cross_validation", "shares")
            descriptions.append({**{part: described[part] for part in parts}, "widths": widths})
        rows.append(FigureRow(label, {}, averaged(descriptions)))
    report(len(rows), len(rows))
    return rows
