"""What others measured of speculative decoding, predicted: their tables, and the kit's numbers beside
them.
"""
