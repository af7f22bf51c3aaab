"""A pipeline across processes: rank 0 drafts and decides, every other rank holds one stage of the
target.
"""
