"""Results: what was explained, what every feature got, and how it is saved and read again."""
