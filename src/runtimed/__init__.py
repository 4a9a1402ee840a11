"""The service: everything of Runtime that runs on the operator's host."""

VERSION = "0.36.0"
"""Of the distribution; the agent, the service and the SDK are released together."""
