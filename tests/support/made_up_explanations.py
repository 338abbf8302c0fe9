"""What tests share: made up explanations."""

from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation


def explanation(features: list[str], **changes: object) -> Explanation:
    scores = [((i * 7) % 11 - 5) / 5 for i in range(len(features))]
    settings = {
        "features": tuple(features),
        "scores": tuple(scores),
        "special": tuple(i == 0 for i in range(len(features))),
        "words": tuple(range(len(features))),
        "text": " ".join(features),
        "target": "positive",
        "output": 1.5,
        "probability": 0.9,
        "ledger": Ledger.of(1.5, sum(scores), 0.25, -0.125),
        "method": "exact",
        "model": "sentiment",
        **changes,
    }
    return Explanation(**settings)  # type: ignore[arg-type]
