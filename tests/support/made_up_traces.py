"""What tests share: made up traces."""

from conserva.engine.ledger import Ledger
from conserva.results.trace import Trace

NASTY = "<script>alert(1)</script> \"q\" & 'm' $x_1$"


SHOWN = Trace(
    features=("[cls]", NASTY, "電影\n", "end"),
    special=(True, False, False, False),
    words=(None, 0, 1, 2),
    layers=("inputs", "layer 0", "layer 1"),
    scores=((None, 0.5, -0.25, 1.0), (0.125, 0.5, -2.0, 0.0), (1.75, 0.0, 0.0, 0.0)),
    sums=(1.25, -1.375, 1.75),
    text="text",
    target="positive",
    output=2.0,
    probability=0.9,
    ledger=Ledger.of(2.0, 1.25, 0.5, 0.25),
    method="exact",
    model="tiny",
)
