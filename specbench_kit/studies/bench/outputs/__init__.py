"""Turn the records of a benchmark into summaries, verdicts, reports and exports."""
