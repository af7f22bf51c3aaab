"""Policies that never return are ended in one line, and those that take their time are not."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch
from tiny_models import decode, make_requests, make_runner, tiny_llama

from specbench_kit.core.errors import MethodError, PolicyError
from specbench_kit.decoding import watched
from specbench_kit.decoding.boundary import CheckedLevels
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.verification import Verdict
from specbench_kit.methods.base import Child, LevelPolicy, Method, Policy
from specbench_kit.models.runner import Runner

Runners = tuple[Runner, Runner]
SHORT_S = 0.3


def draft_without_room(drafter: Drafter) -> None:
    while True:
        drafter.extend(drafter.drafts)


def nothing(_: object) -> None:
    """Return at once."""


def loop_for_ever(_: object) -> None:
    for _ in count():
        pass


def swallow_for_ever(drafter: Drafter) -> None:
    while True:
        with suppress(Exception):  # what a careless plug-in does
            draft_without_room(drafter)


@dataclass(frozen=True)
class Endless(Method):
    """A method one of whose hooks never returns."""

    hooks: dict[str, Callable[[Drafter], None]] = field(default_factory=dict)

    def policy(self) -> Policy:
        return EndlessPolicy(self.hooks)


class EndlessPolicy(Policy):
    def __init__(self, hooks: dict[str, Callable[[Drafter], None]]) -> None:
        self._hooks = hooks

    def draft(self, drafter: Drafter) -> None:
        self._hooks.get("draft", lambda drafter: drafter.extend(drafter.drafts))(drafter)

    def choose(self, drafts: Sequence[Draft]) -> list[list[int]]:
        self._hooks.get("choose", nothing)(drafts)  # type: ignore[arg-type]
        return super().choose(drafts)

    def overlap(self, drafter: Drafter) -> None:
        self._hooks.get("overlap", nothing)(drafter)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        self._hooks.get("observe", nothing)(verdicts)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runners() -> Runners:
    return make_runner(tiny_llama(0), 2, 60), make_runner(tiny_llama(1), 2, 60)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "SILENT_S", SHORT_S)
    monkeypatch.setattr(watched, "POLLING_S", 0.05)
    # A watcher that is asleep would notice the shorter pause only after the longer one.
    monkeypatch.setattr(watched, "_watcher", watched._Watcher())


def run(runners: Runners, **hooks: Callable[[Drafter], None]) -> None:
    # Fresh slots over the same models, since an error leaves requests behind.
    pair = Runner(runners[0].executor), Runner(runners[1].executor)
    decode(Endless(hooks=hooks), pair, make_requests([[1, 2, 3]], 4))


def test_a_loop_that_asks_for_tokens_without_room_is_ended_at_once(runners: Runners) -> None:
    with pytest.raises(
        MethodError,
        match=r"^Endless: draft asked the drafter 1000 times in a row .* no room for: end",
    ):
        run(runners, draft=draft_without_room)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("hook", ["draft", "choose", "overlap", "observe"])
@pytest.mark.parametrize(
    "endless", [loop_for_ever, swallow_for_ever], ids=lambda endless: endless.__name__
)
def test_a_hook_that_never_returns_is_ended_and_named(
    hook: str, endless: Callable[[Drafter], None], runners: Runners
) -> None:
    with pytest.raises(
        MethodError,
        match=rf"^Endless: {hook} took 0 s without .* \(.*test_watched.py, line \d+\): does",
    ):
        run(runners, **{hook: endless})


@pytest.mark.usefixtures("_impatient")
def test_a_level_that_never_comes_is_ended_and_named() -> None:
    class EndlessLevels(LevelPolicy):
        def next_level(
            self, probabilities: torch.Tensor, scores: Sequence[float], room: int
        ) -> list[Child]:
            loop_for_ever(None)
            return []

    levels = CheckedLevels(EndlessLevels(), "deep")
    with pytest.raises(MethodError, match=r"^deep: next_level took"):
        levels.next_level(torch.ones(1, 4), [0.0], 2)


@pytest.mark.usefixtures("_impatient")
def test_what_takes_its_time_is_not_ended(
    runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow forward inside a hook is the drafter's time."""
    fast = runners[1].executor.forward

    def forward(*arguments: object, **options: object) -> object:
        time.sleep(2 * SHORT_S)
        return fast(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(runners[1].executor, "forward", forward)
        run(runners)


def test_many_short_decisions_are_no_endless_one() -> None:
    watch = watched.Watch()
    for _ in range(10):
        with watch.hook("choose"):
            watch.look(watched.SILENT_S / 2)
    with pytest.raises(PolicyError, match="choose took 30 s without drafting"):
        choose_for_ever(watch)


def choose_for_ever(watch: watched.Watch) -> None:
    with watch.hook("choose"):
        watch.look(watched.SILENT_S / 2)
        watch.note_progress()
        watch.look(watched.SILENT_S)
        watch.look(1.0)
        loop_for_ever(None)


def test_a_process_that_was_stopped_has_no_policy_ended() -> None:
    assert watched.counted_s(10.0, 10.5) == 0.5
    assert (
        watched.counted_s(10.0, 10_000.0)
        == watched.LONGEST_STEP * watched.POLLING_S
        < watched.SILENT_S
    )
