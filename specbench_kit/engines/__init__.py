"""The kit's policies as drafters inside other inference engines: one thin face per engine over one
core.
"""
