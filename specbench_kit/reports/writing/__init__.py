"""The parts that reports of several kinds share: sections, sentences, formats of numbers, and
figures.
"""
