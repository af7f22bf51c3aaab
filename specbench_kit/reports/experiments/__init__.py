"""Published experiments and what came out here."""
