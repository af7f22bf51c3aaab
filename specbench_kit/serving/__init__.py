"""Simulated serving: many devices whose drafts one server verifies.

Requests arrive in `arrivals`, devices live in `devices` (their rounds are set up ahead in `round_table`), batches are
formed by `schedulers/` with `schedulers.base.BatchBuilder`, `execution` says what a batch costs, `memory` who has KV,
`simulation` is the event loop, and `metrics` computes what reports show.
"""
