"""A benchmark of evidence: does an explanation of a language model point at the known reason for an answer?"""
