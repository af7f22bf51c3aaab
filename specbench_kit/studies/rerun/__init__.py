"""Run a finished benchmark again and report what differs."""
