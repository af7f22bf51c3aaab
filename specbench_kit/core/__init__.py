"""What every part of the kit may use: errors, options, the registry of plug-ins, texts."""
