"""Readers: functions that make a torch call under a rule set, one module for each kind of operation.

`readers` has the table of all readers. "To read a call" means to make it such that its backward pass follows the rule.
"""
