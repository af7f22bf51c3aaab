"""The commands `skit simulate` and `skit capacity`: settings, scenarios, grids and searches for
capacity.
"""
