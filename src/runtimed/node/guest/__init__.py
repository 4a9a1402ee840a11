"""The guest as an object: implements core.ports.Guest over a channel."""

from runtimed.node.guest.client import GuestClient, Identified, Identity

__all__ = ["GuestClient", "Identified", "Identity"]
