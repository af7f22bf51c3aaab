"""What every run leaves: its folder, who may write to it, where its numbers come from, how it is
taken up again.
"""
