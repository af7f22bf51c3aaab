"""Evidence in results of the kit: folders of `skit ab`, and of `skit bench` with its baseline."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.live.engines.answers import AnswerRecord, DraftCounts
from specbench_kit.metrics.run_data import BenchmarkRun, load_runs
from specbench_kit.reports.study import command_of
from specbench_kit.studies.ab.kind import AB
from specbench_kit.studies.ab.store import ANSWERS, AnswerStore
from specbench_kit.studies.why.asking import COUNTED, observed
from specbench_kit.studies.why.evidence import Evidence, repeated_share
from specbench_kit.studies.why.summary import ObservedAnswer

NO_PROBES = "results hold whole answers alone: give the running servers"
OF_STORED = {
    "undrafted_s": NO_PROBES,
    "verified_token_s": NO_PROBES,
}


def evidence_of(folders: Sequence[Path]) -> Evidence:
    """Return what results tell: one folder has both sides, of two the second one speculates."""
    read = [_read(folder) for folder in folders]
    if len(read) == 1:
        return read[0].alone()
    plain, other = read
    require(
        plain.name != other.name or plain.answers != other.answers,
        f"{folders[0]} and {folders[1]} hold the same answers",
    )
    names = ("plain", "spec") if plain.name == other.name else (plain.name, other.name)
    answers = [
        *(_named(answer, names[0]) for answer in plain.answers),
        *(_named(answer, names[1]) for answer in other.answers),
    ]
    return replace(other.evidence(names, answers), cautions=_unlike(plain, other))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSide:
    """The answers of the method or server of a folder that speculates, and those without speculation."""

    name: str
    answers: Sequence[ObservedAnswer]
    plain_name: str
    plain: Sequence[ObservedAnswer]
    counted: str
    clock: str
    accepted_at: Sequence[float] = ()
    drafts: float = 0.0

    def alone(self) -> Evidence:
        """Return the evidence of both sides of one folder."""
        if not self.plain:
            return self.evidence((self.name,), self.answers)
        return self.evidence((self.plain_name, self.name), [*self.plain, *self.answers])

    def evidence(self, servers: Sequence[str], answers: Sequence[ObservedAnswer]) -> Evidence:
        """Return the evidence of these answers, with the counts of this side."""
        return Evidence(
            servers=servers,
            answers=answers,
            counted=self.counted,
            clock=self.clock,
            accepted_at=self.accepted_at,
            drafts=self.drafts,
            missing=OF_STORED,
        )


def _named(answer: ObservedAnswer, server: str) -> ObservedAnswer:
    return structs.replace(answer, server=server)


def _unlike(plain: StoredSide, other: StoredSide) -> list[str]:
    """Return what makes two folders unlike each other."""
    lines = []
    if {a.request_id for a in plain.answers} != {a.request_id for a in other.answers}:
        lines.append("UNLIKE PROMPTS: the two folders hold answers to different prompts.")
    if plain.clock != other.clock:
        lines.append(f"UNLIKE TIMES: one folder has {plain.clock}, the other {other.clock}.")
    return lines


def _read(folder: Path) -> StoredSide:
    command = command_of(folder)
    if command == AB.command:
        return _of_comparison(folder)
    return _of_benchmark(folder)


def _of_comparison(folder: Path) -> StoredSide:
    """Return both servers of a run of skit ab; the one that drafted more is the one that speculates."""
    study = AB.read(folder)
    require(
        (folder / ANSWERS).is_file(),
        f"{folder} has no {ANSWERS}: only a comparison that skit ab measured itself can be read",
    )
    first, second = study.result.names
    require(
        any(_concurrency(load.load) for load in study.result.loads),
        f"{folder} holds no load of --concurrency: with --rate, how many requests share a forward varies",
    )
    store = AnswerStore.open(folder, (first, second))
    sides = {name: list(_answers(store, name)) for name in (first, second)}
    drafted = {
        name: sum(answer.drafted or 0 for answer in answers) for name, answers in sides.items()
    }
    if drafted[first] > drafted[second]:
        first, second = second, first
    reported = any(
        record.answer is not None and record.answer.drafts is not None
        for record in store.records.values()
        if record.key.server == second
    )
    has_counters = any(change.server == second for change in store.changes.values())
    counted = COUNTED["answer" if reported else "counters" if has_counters else "chunks"]
    return StoredSide(
        name=second,
        answers=sides[second],
        plain_name=first,
        plain=sides[first],
        counted=counted,
        clock="the clock of the client that ran skit ab",
    )


def _answers(store: AnswerStore, server: str) -> Iterator[ObservedAnswer]:
    """Yield the answers of a server; those of a turn that only counters count are one."""
    turns: defaultdict[tuple[str, str, int, int], list[AnswerRecord]] = defaultdict(list)
    for record in store.records.values():
        if record.key.server == server and record.answer is not None and record.answer.bursts:
            turns[record.key.load, server, record.key.repeat, record.turn].append(record)
    for key, records in turns.items():
        together = _concurrency(key[0])
        if together is None:
            continue
        change = store.changes.get(key)
        moved = change.counts if change is not None and not change.fell else None
        seen = [
            observed(
                server,
                record.key.request_id,
                record.answer,
                record.answer.drafts,
                concurrency=together,
            )
            for record in records
            if record.answer is not None
        ]
        reports = any(record.answer and record.answer.drafts for record in records)
        if reports or moved is None or moved.accepted is None:
            yield from seen
        else:
            yield _as_one(seen, moved)


def _concurrency(load: str) -> int | None:
    """Return the requests in flight of a load; None for one of arrivals, whose number varies."""
    kind, _, number = load.partition(" ")
    return int(number) if kind == "concurrency" and number.isdigit() else None


def _as_one(answers: Sequence[ObservedAnswer], moved: DraftCounts) -> ObservedAnswer:
    """Return the answers of a turn as one, with the counts of the turn."""
    tokens = sum(max(0, answer.tokens - 1) for answer in answers)
    first = answers[0]
    known = [answer.repeated for answer in answers if answer.repeated is not None]
    return ObservedAnswer(
        server=first.server,
        request_id=first.request_id,
        tokens=tokens + 1,
        decode_s=sum(answer.decode_s for answer in answers),
        rounds=max(moved.rounds or 0, tokens - (moved.accepted or 0)),
        drafted=moved.drafted,
        accepted=moved.accepted,
        accepted_first=moved.accepted_first,
        ended=False,
        repeated=sum(known) / len(known) if known else None,
        concurrency=first.concurrency,
    )


def _of_benchmark(folder: Path) -> StoredSide:
    """Return a run of skit bench, and its baseline."""
    runs, problems = load_runs([folder])
    require(not problems, "; ".join(problems))
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs)
        raise SkitError(f"{folder} holds {len(runs)} runs: name one of {names}")
    (run,) = runs
    drafted = Counter[int]()
    drafts = 0
    for record in run.group.finished:
        for entry in record.rounds[1:]:
            drafts += bool(entry.submitted)
            drafted.update(range(entry.accepted))
    modelled = run.fields.time_kind == "modelled"
    return StoredSide(
        name=run.method,
        answers=list(_of_records(run, run.group.finished, run.method)),
        plain_name="autoregressive",
        plain=list(_of_records(run, run.plain.finished, "autoregressive")),
        counted="the rounds that skit bench recorded",
        clock="modelled time" if modelled else "time that skit bench measured",
        accepted_at=[float(drafted[place]) for place in sorted(drafted)],
        drafts=float(drafts),
    )


def _of_records(
    run: BenchmarkRun, records: Sequence[RequestRecord], name: str
) -> Iterator[ObservedAnswer]:
    """Yield the requests less their first round, whose verification includes the prompt."""
    batch = run.fields.decoded_at_once
    for record in records:
        first, *later = record.rounds
        times = [entry.end_s for entry in record.rounds]
        if not later or None in times:
            continue
        alone = batch == 1
        yield ObservedAnswer(
            server=name,
            request_id=record.request_id,
            tokens=1 + sum(entry.committed + entry.forced for entry in later),
            decode_s=later[-1].end_s - first.end_s,
            rounds=len(later),
            ttft_s=record.ttft_s,
            drafted=sum(entry.submitted or 0 for entry in later),
            accepted=sum(entry.accepted for entry in later),
            accepted_first=sum(entry.accepted > 0 for entry in later),
            ended=record.finish_reason == "eos",
            repeated=repeated_share(record.output_ids),
            concurrency=batch,
            drafting_s=sum(entry.draft_s + entry.policy_s for entry in later) if alone else None,
            verification_s=sum(entry.verify_s + entry.commit_s for entry in later)
            if alone
            else None,
        )
