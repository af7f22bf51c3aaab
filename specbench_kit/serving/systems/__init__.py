"""Complete ways to serve: who drafts and how, what the server keeps, what it verifies next; one file each."""
