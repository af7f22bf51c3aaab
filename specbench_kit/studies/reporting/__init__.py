"""Pages on runs of any command, alone and side by side: `skit report` and `skit compare`."""
