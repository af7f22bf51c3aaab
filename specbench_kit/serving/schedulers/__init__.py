"""Schedulers: which waiting rounds are verified next; one file each."""
