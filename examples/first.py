"""A first look: where a classifier's score comes from, under three rule sets.

The model is a small BERT with random weights, so that this runs without any download: the words mean nothing, the
books are real.
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

import conserva

WORDS = ["[CLS]", "has", "a", "lot", "of", "the", "virtues", "of", "eastwood", "at", "his", "best", ".", "[SEP]"]


def main() -> None:
    """Explain one sentence and print its scores and its ledger."""
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
        initializer_range=0.2, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1},
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
    ids = torch.tensor([[sorted(set(WORDS)).index(word) + 1 for word in WORDS]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    results = {rules: conserva.relevance(model, inputs, "positive", rules=rules) for rules in ("gi", "ah+ln", "exact")}
    print(f"{'':>12}" + "".join(f"{rules:>10}" for rules in results))
    for i, word in enumerate(WORDS):
        print(f"{word:>12}" + "".join(f"{result.scores()[0, i]:>10.3f}" for result in results.values()))
    print()
    for entry in ("inputs", "positions", "biases", "gap", "output"):
        cells = [getattr(result.ledger, entry)[0] for result in results.values()]
        print(f"{entry:>12}" + "".join(f"{cell:>10.3f}" for cell in cells))


if __name__ == "__main__":
    main()
