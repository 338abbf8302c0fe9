"""Replays: explanations of inputs of one shape, recorded as CUDA graphs."""
