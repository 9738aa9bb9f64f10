"""DDA: the method, and the guided diffusion that it needs."""
