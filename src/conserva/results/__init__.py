"""The result classes: explanations, generations and traces, and how they are saved and loaded."""
