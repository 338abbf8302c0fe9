"""Explanations recorded as CUDA graphs, and replayed for inputs of the same shape."""
