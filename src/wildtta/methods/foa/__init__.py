"""FOA: prompts found by an evolution strategy."""
