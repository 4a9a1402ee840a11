"""Samples of hosts become records of use, each exactly once."""
