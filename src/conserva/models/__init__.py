"""Models: how weights are read from files, the architectures of the paper, and the bundled weights."""
