"""Reports of one page each: two servers compared, batch sizes, a live load and its simulation, tuned options."""
