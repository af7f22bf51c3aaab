"""What the commands run: benchmarks, sweeps, training, reproductions, simulations and files of other tools."""
