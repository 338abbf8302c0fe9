"""The result of an audit: relevance that enters and leaves every operation, compared with theory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from ..engine.coverage import CoverageEntry
from ..engine.ledger import Ledger
from ..results.result import Result
from ..results.schema import Count, uneven, unsummed


@dataclass(frozen=True)
class Component:
    """One operation of one module, with the relevance that enters at its output and leaves at its inputs.

    All are means over samples. `entering = leaving + constants + leak`.
    """

    module: str
    function: str
    kind: str
    """attention, norm, activation, product, linear, or other."""
    rule: str
    """The rule that applies to it; empty if it needs none."""
    entering: float
    leaving: float
    constants: float
    """Relevance of biases, positions and other constants that enter the operation."""
    leak: float
    """Relevance that is lost, or, if negative, counted twice."""
    size: float
    """The mean of |leak| over samples, by which components are ranked."""

    def _flaws(self) -> Iterator[str]:
        yield from unsummed("leak", (self.leaving, self.constants, self.leak), self.entering, "entering")

    @property
    def layer(self) -> str:
        """The layer of the module, such as `encoder.layer.3`, or a part of the model if it is in no layer."""
        return layer_of(self.module)


@dataclass(frozen=True)
class Head:
    """One attention head, compared with Proposition 1 of Ali et al. (2022), in the general form of its appendix."""

    module: str
    head: int
    entering: float
    """Relevance of the head's output."""
    values: float
    queries: float
    keys: float
    """Relevance that leaves through each."""
    covariance: float
    """The relevance that is counted twice by Proposition 1: 2 sum_j Cov_j(scores, values) . dF/dy_j."""

    @property
    def broke(self) -> float:
        """The measured relevance that leaves minus that which enters."""
        return self.values + self.queries + self.keys - self.entering


@dataclass(frozen=True)
class Norm:
    """One norm layer, compared with Proposition 2 of Ali et al. (2022): eps / (eps + Var) of the relevance leaves."""

    module: str
    entering: float
    """Relevance of its output, without that of its bias."""
    leaving: float
    predicted: float
    """The relevance that should leave: by Proposition 2 under the plain gradient, all that enters under the LN-rule."""
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    """Relevance of each position of the first sample at the norm's input and output: figure 2 of the paper."""

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "before", "after")


@dataclass(frozen=True)
class ResidualSum:
    """A sum z = a + b of a branch and its trunk, over all elements that relevance reaches."""

    module: str
    number: Count
    """Its position among the residual sums of the module, from 0."""
    cancellation: float
    """(|a| + |b|) / |z|: 1 if the parts have the same signs, more if they cancel."""
    amplification: float
    """(|R_a| + |R_b|) / |R_z|: how far the absolute relevance of the parts exceeds that of the sum."""

    @property
    def layer(self) -> str:
        """The layer of the module, as in `Component.layer`."""
        return layer_of(self.module)


@dataclass(frozen=True, repr=False)
class Audit(Result):
    """Conservation and coverage of a model under one rule set.

    Examples
    --------
    >>> found = conserva.audit(conserva.load(), "a joy.", rules="gi")
    >>> found.gap_share() > 0.01
    True
    """

    _schema = "conserva/audit/3"
    _noun = "audit"
    _in_repr = ("rules", "model", "samples", "output", "ledger")

    rules: str
    model: str
    target: str
    samples: Count
    output: float
    """The explained output, a mean over samples."""
    ledger: Ledger[float]
    """How it splits, as means over samples. The gap is the sum of all leaks."""
    components: tuple[Component, ...]
    """In the order of the forward pass."""
    heads: tuple[Head, ...]
    norms: tuple[Norm, ...]
    outputs: tuple[float, ...]
    """The explained output of each sample."""
    ledgers: tuple[Ledger[float], ...]
    """How it splits."""
    coverage: tuple[CoverageEntry, ...]
    residuals: tuple[ResidualSum, ...] = ()
    """In the order of the forward pass."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sums(self) -> tuple[float, ...]:
        """The sum of the inputs' relevance of each sample: figure 3 of the paper, over `outputs`."""
        return tuple(ledger.inputs for ledger in self.ledgers)

    def ranked(self) -> list[Component]:
        """Return the components that break conservation, in descending order of `size`."""
        broken = [component for component in self.components if component.size > 0]
        return sorted(broken, key=lambda component: -component.size)

    def layers(self) -> dict[str, tuple[float, float]]:
        """Return the relevance of constants and the leak of each layer, from the output to the inputs."""
        sums: dict[str, tuple[float, float]] = {}
        for component in reversed(self.components):
            constants, leak = sums.get(component.layer, (0.0, 0.0))
            sums[component.layer] = (constants + component.constants, leak + component.leak)
        return sums

    def kinds(self) -> dict[str, float]:
        """Return the leak of each kind of operation."""
        leaks: dict[str, float] = {}
        for component in self.components:
            leaks[component.kind] = leaks.get(component.kind, 0.0) + component.leak
        return leaks

    def cancelling(self) -> dict[str, tuple[float, float]]:
        """Return the largest cancellation and the largest amplification of the residual sums of each layer."""
        largest: dict[str, tuple[float, float]] = {}
        for one in self.residuals:
            cancellation, amplification = largest.get(one.layer, (0.0, 0.0))
            largest[one.layer] = (max(cancellation, one.cancellation), max(amplification, one.amplification))
        return largest

    def gap_share(self) -> float:
        """Return the largest `Ledger.gap_share` of a sample."""
        return max((ledger.gap_share for ledger in self.ledgers), default=0.0)

    def show(self, *, full: bool = False) -> None:
        """Print the audit to the terminal.

        Parameters
        ----------
        full
            Whether to print all leaks, and leaks by kind and layer, heads, norms, and the rule of each operation.
        """
        self._renderers["terminal"](self, full=full)

    def draw_norm(self, module: str, path: str | Path) -> None:
        """Draw the relevance of each position before and after one norm: figure 2 of the paper."""
        self._renderers["norm"](self, module, path)

    def draw_scatter(self, path: str | Path) -> None:
        """Draw the sum of the inputs' relevance over the output, a point for each sample: figure 3 of the paper."""
        self._renderers["sums"](self, path)

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "outputs", "ledgers")
        for i, (ledger, output) in enumerate(zip(self.ledgers, self.outputs, strict=False)):
            yield from unsummed(f"ledgers[{i}]", astuple(ledger), output)
        yield from unsummed("ledger", astuple(self.ledger), self.output)
        if not self.components:
            yield "components has no entry"


def layer_of(module: str) -> str:
    """Return the layer in a module's name, such as `encoder.layer.3`; otherwise the first two parts of the name."""
    numbered = re.match(r"^(.*?\.\d+)(\.|$)", module)
    return numbered.group(1) if numbered else ".".join(module.split(".")[:2]) or "the model itself"
