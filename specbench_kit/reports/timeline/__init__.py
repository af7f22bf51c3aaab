"""One run moment by moment: who was busy when, and where each token came from."""
