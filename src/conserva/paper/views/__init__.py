"""How the paper's experiments are shown."""
