"""The commands `skit simulate` and `skit capacity`: settings, scenarios, grids of simulations, searches for capacity."""
