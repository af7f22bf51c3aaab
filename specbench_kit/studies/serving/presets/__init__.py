"""Published experiments as simulations; one file each."""
