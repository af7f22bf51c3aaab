"""What the numbers of a run mean: their vocabulary, how they are computed, and what they show side
by side.
"""
