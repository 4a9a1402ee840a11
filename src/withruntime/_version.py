"""Names the version that this client reports to the service."""

VERSION = "0.36.0"
