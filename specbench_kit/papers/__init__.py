"""Published numbers of the papers that the kit implements: experiments as TOML files, and constants
for reports.
"""
