"""What `skit profile-verifier` and `skit profile-drafter` do: measure or derive, fit, save,
report.
"""
