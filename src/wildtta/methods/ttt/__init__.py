"""TTT: the method, and the rotation branch that it needs."""
