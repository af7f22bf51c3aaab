"""From the content of a TOML file to a deployment; every error names the file and the key."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.deployments.base import PLACEMENTS, Deployment, Endpoint, HandOver, Link
from specbench_kit.deployments.forms import COEFFICIENTS, MODELS
from specbench_kit.deployments.profiles import find_profile, origin, power_of
from specbench_kit.profilers import cards

Fields = Mapping[str, Any]

OWN = "coefficients in the deployment itself"
OWN_PRICE = "as the deployment says"
TEXTS = ("name", "description", "source")
_SECTIONS = ("drafter", "verifier", "link", "sweep", "colocated")
_OF_BOTH = ("device", "profile", "coefficients", "price_per_hour", "power_w")
_DRAFTER = (*_OF_BOTH, "placement", "predictor_s")
_VERIFIER = (*_OF_BOTH, "stages", "hand_over")
_COLOCATED = ("device", "profile", "coefficients")
_LINK = (*(one.name for one in fields(Link)), "payload", "vocabulary", "top")
PAYLOADS = ("ids", "topk", "full", "hidden")
"""What goes up for a drafted token: its id alone, the likeliest candidates, all probabilities, or a hidden state."""
PAIR_BYTES, PROBABILITY_BYTES = 8, 2
_HAND_OVER = tuple(one.name for one in fields(HandOver))


def parse(content: Fields, folder: Path, place: str) -> Deployment:
    """The deployment that a file in `folder` describes."""
    cards.require_keys(content, (*TEXTS, "drafter", "verifier"), (*TEXTS, *_SECTIONS), place)
    _require_texts(content, TEXTS, place)
    drafter, verifier, link, sweep, colocated = (_section(content, name, place) for name in _SECTIONS)
    _check_sweep(sweep, f"{place}, [sweep]")
    return Deployment(
        drafter=_endpoint(drafter, _DRAFTER, folder, f"{place}, [drafter]"),
        verifier=_endpoint(verifier, _VERIFIER, folder, f"{place}, [verifier]"),
        link=_link(link, f"{place}, [link]"),
        colocated=_endpoint(colocated, _COLOCATED, folder, f"{place}, [colocated]") if colocated else None,
        **_drafting(drafter, f"{place}, [drafter]"),
        **{name: content[name] for name in TEXTS},
    )


def _section(content: Fields, name: str, place: str) -> Fields:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise SkitError(f"{place}: {name} must be a table, [{name}], not {table!r}")
    return table


def _endpoint(table: Fields, known: tuple[str, ...], folder: Path, place: str) -> Endpoint:
    cards.require_keys(table, ("device",), known, place)
    _require_texts(table, ("device",), place)
    price, stages = table.get("price_per_hour", 0.0), table.get("stages", 1)
    cards.require_numbers({"price_per_hour": price}, place)
    _require_whole("stages", stages, 1, place)
    latency, known_from, power_w = _latency(table, folder, place)
    cards.require_numbers({"power_w": table.get("power_w", power_w)}, place)
    hand_over = _hand_over(_section(table, "hand_over", place), f"{place}, hand_over")
    power_w = float(table.get("power_w", power_w))
    return Endpoint(table["device"], latency, float(price), stages, known_from, hand_over, power_w)


def _hand_over(table: Fields, place: str) -> HandOver:
    cards.require_keys(table, (), _HAND_OVER, place)
    _require_whole("per_pass", table.get("per_pass", 1), 0, place)
    for names, least in ((("latency_s", "bytes_per_token", "prune_s", "batching_s"), 0.0), (("bytes_per_s",), 1.0)):
        cards.require_numbers({name: table[name] for name in names if name in table}, place, least)
    values: dict[str, Any] = {name: float(value) for name, value in table.items() if name != "per_pass"}
    return HandOver(per_pass=table.get("per_pass", 1), **values)


def _latency(table: Fields, folder: Path, place: str) -> tuple[LatencyModel, str, float]:
    """From the profile that is named, or the coefficients that are there instead; where it is from, and the power."""
    if ("profile" in table) == ("coefficients" in table):
        raise SkitError(f"{place} needs a profile or a table of coefficients, and not both")
    if "coefficients" in table:
        return _coefficients(_section(table, "coefficients", place), f"{place}, coefficients"), OWN, 0.0
    _require_texts(table, ("profile",), place)
    profile = find_profile(table["profile"], folder, f"{place}: profile")
    return profile.latency(), origin(profile), power_of(profile)


def _coefficients(table: Fields, place: str) -> LatencyModel:
    form: Any = table.get("form")
    if form not in MODELS:
        raise SkitError(f"{place}: form must be {' or '.join(map(repr, MODELS))}, not {form!r}")
    wanted = COEFFICIENTS[form]
    cards.require_keys(table, ("form", *wanted), ("form", *wanted), place)
    numbers = {name: table[name] for name in wanted}
    cards.require_numbers(numbers, place)
    if numbers.get("tile", 1) < 1:
        raise SkitError(f"{place}: tile must be at least 1 token, not {numbers['tile']}")
    if not any(number for name, number in numbers.items() if name != "tile"):
        raise SkitError(f"{place}: all of them are 0, so that no forward would take any time")
    return MODELS[form](**{name: float(value) for name, value in numbers.items()})


def _drafting(table: Fields, place: str) -> dict[str, Any]:
    placement, predictor_s = table.get("placement", "edge"), table.get("predictor_s")
    if placement not in PLACEMENTS:
        raise SkitError(f"{place}: placement must be {' or '.join(PLACEMENTS)}, not {placement!r}")
    if predictor_s is None:
        return {"placement": placement}
    cards.require_numbers({"predictor_s": predictor_s}, place)
    return {"placement": placement, "predictor_s": float(predictor_s), "predictor_origin": OWN_PRICE}


def _link(table: Fields, place: str) -> Link:
    cards.require_keys(table, (), _LINK, place)
    _require_whole("seed", table.get("seed", 0), 0, place)
    if table.get("loss", 0) and not (0 < table["loss"] < 1 and table.get("retry_s")):
        raise SkitError(f"{place}: loss is a share from 0 to below 1, and needs retry_s, until it is noticed")
    table = _with_payload(table, place)
    times, bandwidths = ("rtt_s", "jitter_s", "draft_bytes", "loss", "retry_s"), ("up_bytes_per_s", "down_bytes_per_s")
    for names, least in (((*times, "state_bytes"), 0.0), (bandwidths, 1.0)):
        cards.require_numbers({name: table[name] for name in names if name in table}, place, least)
    values: dict[str, Any] = {name: float(value) for name, value in table.items() if name != "seed"}
    return Link(seed=table.get("seed", 0), **values)


def _with_payload(table: Fields, place: str) -> Fields:
    """A payload by its name, as bytes beside each drafted token's id."""
    kind, rest = table.get("payload"), {k: v for k, v in table.items() if k not in ("payload", "vocabulary", "top")}
    if kind is None:
        return rest
    if kind not in PAYLOADS or "draft_bytes" in table:
        raise SkitError(f"{place}: payload must be {' or '.join(PAYLOADS)}, and stands in place of draft_bytes")
    needed = {"topk": "top", "full": "vocabulary", "hidden": "state_bytes"}.get(kind)
    if needed and not table.get(needed):
        raise SkitError(f"{place}: the payload '{kind}' needs {needed}")
    each = {"top": PAIR_BYTES, "vocabulary": PROBABILITY_BYTES, "state_bytes": 1}
    return {**rest, "draft_bytes": float(table[needed] * each[needed]) if needed else 0.0}


def _check_sweep(table: Fields, place: str) -> None:
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise SkitError(f"{place}: {key} must be a list of values, not {values!r}")


def _require_texts(table: Fields, names: tuple[str, ...], place: str) -> None:
    for name in names:
        if not isinstance(table[name], str) or not table[name].strip():
            raise SkitError(f"{place}: {name} must be a text, not {table[name]!r}")


def _require_whole(name: str, value: Any, least: int, place: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SkitError(f"{place}: {name} must be a whole number from {least} up, not {value!r}")
