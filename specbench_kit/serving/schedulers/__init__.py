"""Which waiting requests are verified next; one file each."""
