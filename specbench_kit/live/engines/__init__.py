"""Adapters to other inference engines that verify drafts, one file each."""
