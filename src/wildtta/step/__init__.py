"""One online step: the loop, passes, state, precision, CUDA graphs, and the report of a step."""
