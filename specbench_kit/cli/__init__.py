"""The `skit` command line."""
