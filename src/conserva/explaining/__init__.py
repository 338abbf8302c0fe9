"""From inputs to results: batches on their way through a method, generations, traces."""
