"""Hardware: the devices and links that a plan is made for."""
