"""Which options of a method have an effect where rates state what is drafted, and which are
refused.
"""

from collections.abc import Iterator, Sequence

from specbench_kit.core.errors import SkitError, require
from specbench_kit.methods.spec import parse_method
from specbench_kit.serving.acceptance_spec import NAME_A_TRACE, parse_rates
from specbench_kit.serving.drafter_costs import DRAFT_MODEL, costs_of
from specbench_kit.serving.systems.base import DraftingPlace


def require_effect(
    spec: str, acceptance: str, drafting: DraftingPlace, *, cuts: bool = True
) -> None:
    """Raise SkitError for options of a method where stated rates say what is drafted, and the
    drafter what it costs.

    A server that drafts asks a policy that decides for the whole batch, and `cuts` all other drafts
    at the longest that a spec gives its method.
    """
    method = parse_method(spec)
    at_server = drafting == "server"
    if at_server and "link" in _names(spec):
        raise SkitError(
            f"{spec}: link changes nothing where the server drafts: no draft crosses it; leave it out"
        )
    rates = parse_rates(acceptance) if acceptance else None
    if rates is None or (at_server and cuts and method.batch_aware):
        return
    longest = rates.source(DRAFT_MODEL).typical.longest

    def effects(spec: str) -> tuple[object, ...]:
        method = parse_method(spec)
        limit = given_limit(spec, acceptance)
        cut_at = min(longest, limit or longest) if at_server and cuts else longest
        return cut_at, bool(method.drafting.models), costs_of(method).per_token

    # A length that says what the rates say already is no contradiction.
    repeats = given_limit(spec, acceptance) == longest
    without_effect = [
        option
        for option, rest in _left_out(spec)
        if effects(rest) == effects(spec) and not (repeats and option == method.draft_limit)
    ]
    require(
        not without_effect,
        f"{spec}: {', '.join(without_effect)} changes nothing where {acceptance.partition(':')[0]} rates state what is "
        f"drafted: leave it out, or {NAME_A_TRACE}",
    )


def given_limit(spec: str, acceptance: str) -> int | None:
    """Return the longest draft of a method; where rates state what is drafted, only one that the spec
    gives: a default would cut what is stated, and nobody would notice.
    """
    method = parse_method(spec)
    if parse_rates(acceptance) is not None and method.draft_limit not in _names(spec):
        return None
    return method.longest_draft


def _names(spec: str) -> list[str]:
    return [option for option, _ in _left_out(spec)]


def _left_out(spec: str) -> Iterator[tuple[str, str]]:
    """Yield the name of every option of a method and of its drafter, with the spec without it."""
    name, _, text = spec.partition(":")
    options = text.split(",") if text else []
    for place, option in enumerate(options):
        key, _, value = option.partition("=")
        others = options[:place], options[place + 1 :]
        if key != "drafter":
            yield key, _joined(name, ":", ",", [*others[0], *others[1]])
            continue
        drafter, _, own = value.partition(".")
        parts = own.split("+") if own else []
        for number, part in enumerate(parts):
            rest = _joined(drafter, ".", "+", [*parts[:number], *parts[number + 1 :]])
            yield (
                part.partition("=")[0],
                _joined(name, ":", ",", [*others[0], f"drafter={rest}", *others[1]]),
            )


def _joined(name: str, begin: str, separator: str, options: Sequence[str]) -> str:
    """Return a spec of these options, which is the name alone if there are none."""
    return begin.join(filter(None, (name, separator.join(options))))
