"""Machines on one host: drivers, templates and spares, the channel to the guest."""
