"""The vocabulary of the service: values, states, errors, limits. Imports nothing of ours."""
