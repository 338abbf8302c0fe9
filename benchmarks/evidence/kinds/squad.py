"""Questions about a passage (SQuAD 2.0): the evidence is the answer in the passage.

The prompt is the one of four that a small model answered best: of 50 items, SmolLM2-135M-Instruct said 8 answers whole
with it, 5 with a plain "Answer:", and none in its chat template, where it begins with a sentence of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..item import Item, Source

FILE = "squad_v2_answerable.jsonl"


def items(source: Source) -> Iterator[Item]:
    """Yield an item for each row; the answer is written as in the passage, not as in the row."""
    for row in source.rows(FILE):
        context, (start, end) = row["context"].rstrip(), row["answer_span"]
        lead = len(context) - len(context.lstrip())
        yield Item(
            "squad",
            f"{context[lead:]}\n\nQuestion: {row['question'].strip()}\nAnswer (in a few words):",
            context[start:end],
            ((start - lead, end - lead),),
            (0, len(context) - lead),
            group=context[lead:],
            labels={"depth": round(start / len(context), 3)},
        )
