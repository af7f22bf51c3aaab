"""Clients of inference servers that stream their answers, one file per form of the stream."""
