"""Drivers: how a machine is booted, restored, saved and ended. One Protocol, one contract suite."""
