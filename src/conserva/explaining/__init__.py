"""From inputs to results: `explain`, `compare`, `explain_generation` and `trace`."""
