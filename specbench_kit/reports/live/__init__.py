"""A server under load, and the simulator beside it."""
