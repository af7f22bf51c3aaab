"""A server's own time, measured from the other end of its wire."""
