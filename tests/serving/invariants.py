"""What holds in every simulation, whatever its devices and server do."""

import numpy as np

from specbench_kit.serving.result import SimulationResult


def no_token_is_lost_or_doubled(result: SimulationResult) -> None:
    """The rounds of a finished response commit its length; those of an unfinished one what it has so far."""
    rounds, responses = result.rounds, result.responses
    for client in np.unique(responses["client"]):
        of, mine = rounds["client"] == client, responses["client"] == client
        done = np.bincount(
            rounds["response"][of].astype(int), rounds["committed"][of], minlength=int(mine.sum())
        )
        assert done.tolist() == responses["committed"][mine].tolist()
    finished = np.isfinite(responses["end_s"])
    assert (responses["committed"] == responses["tokens"])[finished].all()
    assert (responses["committed"] < responses["tokens"])[~finished].all()
    verified = np.isfinite(rounds["ended_s"])
    assert (rounds["accepted"] <= rounds["submitted"]).all()
    assert (rounds["committed"] <= rounds["accepted"] + 1).all()
    assert (rounds["committed"][verified] >= 1).all()


def no_request_is_in_two_batches(result: SimulationResult) -> None:
    rounds = result.rounds
    batch = rounds["batch"][np.isfinite(rounds["ended_s"])].astype(int)
    pairs = {
        (client, number)
        for client, number in zip(rounds["client"], rounds["batch"], strict=True)
        if number >= 0
    }
    assert len(pairs) == len(batch)
    counts = np.bincount(batch, minlength=len(result.batches["size"]))
    ended = result.batches["ended_s"] <= result.end_s
    assert counts[ended].tolist() == result.batches["size"][ended].tolist()


def time_never_runs_backwards(result: SimulationResult) -> None:
    rounds, batches = result.rounds, result.batches
    for earlier, later in (
        ("sent_s", "arrived_s"),
        ("arrived_s", "started_s"),
        ("ended_s", "answered_s"),
    ):
        assert (rounds[earlier] <= rounds[later]).all(), (earlier, later)
    verified = np.isfinite(rounds["ended_s"])
    assert (rounds["started_s"] < rounds["ended_s"])[verified].all()
    assert (batches["started_s"][1:] >= batches["ended_s"][:-1]).all()
    responses = result.responses
    assert (responses["first_s"] <= responses["end_s"]).all()
    for client in np.unique(rounds["client"]):
        mine = rounds["client"] == client
        assert (np.diff(rounds["sent_s"][mine]) > 0).all()
        assert (rounds["sent_s"][mine][1:] >= rounds["ended_s"][mine][:-1]).all()
