"""Simulated serving: many devices whose drafts one server verifies, or several.

Requests arrive in `arrivals`, devices live in `devices` (their rounds are set up ahead in `round_table`), batches are
formed by `schedulers/` with `schedulers.base.BatchBuilder`, `execution` says what a batch costs, `memory` who has KV,
`simulated_server` is one server, `pool` several of them behind one of the `routers/`, `simulation` is the event
loop, and `metrics` computes what reports show.
"""
