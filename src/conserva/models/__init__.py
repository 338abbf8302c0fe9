"""Models: loading of weights from files, the architectures of the paper, and the bundled weights."""
