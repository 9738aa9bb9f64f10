"""Steady: when it acts (the evidence), what it does on BatchNorm networks, and its step elsewhere."""
