"""The engine: torch calls read by rules, one forward pass, one backward pass, and the ledger."""
