"""The engine: rules for torch operations, one forward pass, one backward pass, and the ledger."""
