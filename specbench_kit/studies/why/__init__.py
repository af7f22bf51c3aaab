"""Why speculation is slow or fast at a running server: from its counters and a few timed requests."""
