"""Published numbers of the papers that the kit follows, as data."""
