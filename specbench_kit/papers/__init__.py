"""Published numbers of the papers that the kit follows, as data: experiments, and constants that reports quote."""
