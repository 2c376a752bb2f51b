"""``autopipe bench`` runs a plan on this machine's ranks with made-up data."""
