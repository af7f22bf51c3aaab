"""What the numbers of a run mean: units of resampling, intervals of ratios, and what they show."""
