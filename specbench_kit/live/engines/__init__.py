"""Kinds of inference servers, one file each: what their requests and answers look like, and how
they verify.
"""
