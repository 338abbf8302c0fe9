"""What an explanation costs, in forward passes: BERT-base, batch 8 x 128, CPU.

`python benchmarks/overhead.py` prints ratios of medians and writes benchmarks/results/overhead.json.
`--small` times a small model, where the cost of Python shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import BertConfig, BertForSequenceClassification

import conserva
from timing import medians, report

SMALL = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--small", action="store_true")
    options.add_argument("--ours-only", action="store_true", help="leave captum and autolrp out")
    given = options.parse_args()

    torch.manual_seed(0)
    config = BertConfig(**SMALL if given.small else {})
    model = BertForSequenceClassification(config).eval()
    frozen = BertForSequenceClassification(config).eval().requires_grad_(False)
    ids = torch.randint(1000, 30000, (given.batch, given.tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    embeddings = model.get_input_embeddings()(ids).detach()

    def forward() -> Tensor:
        with torch.no_grad():
            return model(**inputs).logits  # type: ignore[no-any-return]

    def gradient_times_input(network: torch.nn.Module) -> Callable[[], Tensor]:
        def run() -> Tensor:
            x = embeddings.clone().requires_grad_()
            logits = network(inputs_embeds=x, attention_mask=inputs["attention_mask"]).logits
            logits[:, 1].sum().backward()
            network.zero_grad()
            return (x * x.grad).sum(-1)  # type: ignore[operator]

        return run

    def ours(rules: str, ledger: bool) -> Callable[[], object]:
        return lambda: conserva.relevance(model, inputs, 1, rules=rules, ledger=ledger)

    contenders: dict[str, Callable[[], object]] = {
        "forward": forward,
        "plain gradient x input": gradient_times_input(model),
        "the same, parameters frozen": gradient_times_input(frozen),
        "AH alone, by intercepting calls": intercepted(gradient_times_input(frozen)),
        "conserva gi": ours("gi", False),
        "conserva ah+ln": ours("ah+ln", False),
        "conserva ah+ln, with the ledger": ours("ah+ln", True),
        "conserva exact, with the ledger": ours("exact", True),
    }
    if not given.ours_only:
        contenders |= peers(model, embeddings, inputs["attention_mask"])
    contenders["conserva audit, gi"] = lambda: conserva.audit(model, inputs, 1, rules="gi")
    contenders["conserva audit, ah+ln"] = lambda: conserva.audit(model, inputs, 1, rules="ah+ln")
    seconds = medians(contenders, given.rounds)
    settings = {"model": "small" if given.small else "BERT-base", "batch": given.batch, "tokens": given.tokens}
    name = "overhead-small.json" if given.small else "overhead.json"
    report("Cost of an explanation", seconds, "forward", settings, Path(__file__).parent / "results" / name)


class AhAlone(TorchFunctionMode):
    """The AH-rule alone, with nothing checked: what any implementation that intercepts torch calls takes at least."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.scaled_dot_product_attention:
            query, key, *others = args
            return function(query.detach(), key.detach(), *others, **(kwargs or {}))
        return function(*args, **kwargs) if kwargs else function(*args)


def intercepted(contender: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with AhAlone():
            return contender()

    return run


def peers(model: torch.nn.Module, embeddings: Tensor, mask: Tensor) -> dict[str, Callable[[], object]]:
    """Return captum's InputXGradient and autolrp's conservative preset, each used as its own documents show."""
    import autolrp
    from captum.attr import InputXGradient

    def logits(x: Tensor) -> Tensor:
        return model(inputs_embeds=x, attention_mask=mask).logits  # type: ignore[no-any-return]

    def captum() -> object:
        return InputXGradient(logits).attribute(embeddings, target=1)

    rules = autolrp.LRPConfig(rule={**autolrp.BASE, **autolrp.CPLRP})

    def auto_lrp() -> object:
        x = autolrp.tensor(embeddings.clone())
        logits(x)[:, 1].sum().lrp(config=rules)  # type: ignore[attr-defined]
        return x.relevance  # type: ignore[attr-defined]

    return {"captum InputXGradient": captum, "autolrp CPLRP": auto_lrp}


if __name__ == "__main__":
    main()
