"""What tests share: made up generations."""

import random
from typing import Any

from conserva.engine.ledger import Ledger
from conserva.results.generation import Generation, Step

HOSTILE = "</script><img src=x onerror=alert(1)>"


READ = ("<s>", "The", " capital", " of", " <b>France", HOSTILE, "\n", " is")


WRITTEN = (" Paris", ",", "\n", " a & b", " [bold]x[/bold]", '"', " done")


def generation(read: tuple[str, ...] = READ, written: tuple[str, ...] = WRITTEN, **changes: Any) -> Generation:
    chance = random.Random(3)
    steps = []
    for i, token in enumerate(written):
        scores = [chance.gauss(0, 0.3) for _ in range(len(read) + i)]
        scores[0] = -4 - chance.random()  # the sink
        if i == len(written) - 1:  # every shade
            scores = [2 * k / (len(scores) - 1) - 1 for k in range(len(scores))]
        output, inputs = 9 + chance.random(), sum(scores)
        ledger = Ledger.of(output, inputs, 0.25, output - inputs - 0.25 - 3e-6)
        steps.append(Step(token, tuple(scores), output, chance.random(), ledger, ((token, 0.5), (HOSTILE, 0.125))))
    features = (*read, *written)
    settings: dict[str, Any] = {
        "features": features,
        "special": tuple(i == 0 for i in range(len(features))),
        "words": tuple(range(len(features))),
        "start": len(read),
        "steps": tuple(steps),
        "text": "".join(read[1:]),
        "written": "".join(written),
        "score": "logit",
        "method": "exact",
        "model": "tiny",
        "sink": 0,
        **changes,
    }
    return Generation(**settings)


ONE = generation()
