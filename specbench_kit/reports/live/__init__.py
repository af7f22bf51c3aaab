"""The reports of loads on a real server and of the simulator's validation by them."""
