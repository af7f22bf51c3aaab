"""Experiments that a closed form answers: what follows from numbers that the paper prints itself."""

from collections.abc import Callable, Mapping
from math import ceil, log, log1p
from statistics import fmean
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.methods.specedge import calibrated_depth
from specbench_kit.models.executors.agreement import LEAST, Agreement
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.base import MODELS
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.loading import load
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import FUSED, find_software
from specbench_kit.serving.round_sources import even_chance
from specbench_kit.studies.reproduction.serving import Rows

PLACES = 1000
HOUR_S = 3600
GIB = 2**30


def speedup(drafted: float, accepted: float, draft_cost: float) -> float:
    """Over plain decoding, where a drafted token, verified too, costs that share of a plain step."""
    return (1 + accepted) / (1 + drafted * draft_cost)


def pipeline_s(pass_s: float, stages: int, hit_rate: float, more_s: float = 0.0) -> float:
    """Time between tokens where the next one is in flight with `hit_rate`; `more_s` comes on top of a step."""
    return (pass_s / stages + more_s) * (1 + (1 - hit_rate) * (stages - 1))


def drawn_first(surety: float, temperature: float, top_p: float, top_k: int) -> float:
    """How often the target draws its likeliest token, of which it is as sure as `surety` at a mean, at temperature 1.

    Over places the surety varies as in a synthetic pair of full spread; at each the others fall by one factor.
    """
    one = Agreement((surety,), spread=1.0)
    sure = (one.chance((place + 0.5) / PLACES) for place in range(PLACES))
    return fmean(
        _drawn_first(min(max(LEAST, 1 - first), 1 - LEAST) ** (1 / temperature), top_p, top_k) for first in sure
    )


def _drawn_first(factor: float, top_p: float, top_k: int) -> float:
    """Of tokens that are likely in proportion to powers of `factor`."""
    every = 1 - factor**top_k
    kept = min(top_k, max(1, ceil(log1p(-top_p * every) / log(factor))))
    return (1 - factor) / (1 - factor**kept)


def drawn_longer(
    stages: int, hit_rate: float, held: float, surety: float, temperature: float, top_p: float, top_k: int
) -> float:
    """Percent that a token takes longer in a pipeline where it is drawn.

    The likeliest is in flight with `hit_rate`, another one with `held`.
    """
    first = drawn_first(surety, temperature, top_p, top_k)
    drawn = pipeline_s(1.0, stages, first * hit_rate + (1 - first) * held)
    return 100 * (drawn / pipeline_s(1.0, stages, hit_rate) - 1)


def rate(tokens: float, seconds: float) -> float:
    """Tokens per second."""
    return tokens / seconds


def per_dollar(tokens_per_s: float, price_per_hour: float) -> float:
    """Thousands of tokens per dollar."""
    return HOUR_S * tokens_per_s / price_per_hour / 1e3


def round_rate(tokens: float, verify_s: float, steps: int = 0, step_s: float = 0.0) -> float:
    """Tokens per second of rounds that bring so many tokens, after so many draft forwards."""
    return tokens / (verify_s + steps * step_s)


def tokens_at(levels: int, tokens: float, of_levels: int) -> float:
    """Tokens per verification of `levels`, each right as often as where `of_levels` bring `tokens`."""
    return _moments(_level_acceptance(tokens, of_levels), levels)[0]


def tokens_sd_at(levels: int, tokens: float, of_levels: int) -> float:
    """The standard deviation from round to round that goes with `tokens_at`."""
    return _moments(_level_acceptance(tokens, of_levels), levels)[1]


def speedup_after(speedup: float, before_s: float, after_s: float) -> float:
    """Over the same base, once what took `before_s` takes `after_s`."""
    return speedup * before_s / after_s


def turn_s(tokens_per_s: float, clients: int) -> float:
    """Seconds between one client's tokens, where so many share a rate."""
    return clients / tokens_per_s


def filtered(acceptance: float, recall: float, specificity: float) -> float:
    """Share of tokens that is accepted among those that a predictor lets pass."""
    right, wrong = acceptance * recall, (1 - acceptance) * (1 - specificity)
    return right / (right + wrong)


def share(part: float, whole: float) -> float:
    """Of a whole."""
    return part / whole


def stage_gib(model: str, layers: int, heads: int, tokens: int, more_gib: float) -> float:
    """Memory of a pipeline's stage in half precision: layers, tables of the vocabulary, KV of its layers, and more."""
    card = bundled_architectures()[model]
    of_layers = (card.layer_parameters + card.kv_numbers * tokens) * layers / card.layers
    return 2 * (of_layers + heads * card.head_parameters) / GIB + more_gib


def beside_profile(profile: str, new: int, beside_new: int, beside_cached: int) -> float:
    """How much longer a prompt of `new` tokens takes with another request in its batch, by a profile."""
    found = load(profile)
    return _joined(MODELS[found.form](**found.coefficients), new, (beside_new, beside_cached))


def beside_data_sheet(
    model: str, device: str, cards: int, dtype: str, new: int, beside_new: int, beside_cached: int
) -> float:
    """The same by the data sheet of so many cards that share a model, with fused kernels; reducing takes no time."""
    roofline = Roofline(find_device(device).times(cards), bundled_architectures()[model], dtype)
    return _joined(roofline.estimate(find_software(FUSED)), new, (beside_new, beside_cached))


LAWS: Mapping[str, Callable[..., float]] = {
    "depth": calibrated_depth,
    "speedup": speedup,
    "pipeline_s": pipeline_s,
    "drawn_longer": drawn_longer,
    "rate": rate,
    "per_dollar": per_dollar,
    "round_rate": round_rate,
    "tokens_at": tokens_at,
    "tokens_sd_at": tokens_sd_at,
    "speedup_after": speedup_after,
    "turn_s": turn_s,
    "filtered": filtered,
    "share": share,
    "stage_gib": stage_gib,
    "beside_profile": beside_profile,
    "beside_data_sheet": beside_data_sheet,
}


def law(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """The value of every series: the law that it names, with its other options."""
    rows: Rows = []
    for label, one in options["series"].items():
        given = dict(one)
        name = given.pop("law")
        if name not in LAWS:
            raise SkitError(f"unknown law '{name}'; known: {', '.join(LAWS)}")
        rows.append({"series": label, "value": {"mean": float(LAWS[name](**given))}})
    told(len(rows), len(rows))
    return rows


def _joined(latency: LatencyModel, new: int, beside: Row) -> float:
    return latency.seconds([(new, 0), beside]) / latency.seconds([(new, 0)])


def _moments(acceptance: float, levels: int) -> tuple[float, float]:
    """Mean and standard deviation of the tokens of a round, each level being right with the same chance."""
    mean = sum(acceptance**level for level in range(levels + 1))
    square = sum((2 * level + 1) * acceptance**level for level in range(levels + 1))
    return mean, max(0.0, square - mean**2) ** 0.5


def _level_acceptance(tokens: float, levels: int) -> float:
    """The chance at which so many levels bring so many tokens a round."""
    if not 1 <= tokens <= levels + 1:
        raise SkitError(f"{levels} levels bring 1 to {levels + 1} tokens a round, not {tokens:g}")
    return even_chance(tokens - 1, levels)
