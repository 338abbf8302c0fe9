"""Training of the paper's classifiers."""
