"""Adaptation behind a port: a fleet with a guard as a service on Ray Serve, and its client."""

from wildtta.serve.client import Client, ServiceError

__all__ = ["Client", "ServiceError"]
