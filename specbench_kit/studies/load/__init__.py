"""Many devices at a real server: their drafts from a trace and their drafting time from a model, the rest as it is."""
