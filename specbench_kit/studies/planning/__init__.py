"""The command `skit plan`: the cheapest fleet of verifiers that keeps a promise to many devices."""
