"""The result of an audit: what every operation took in and gave on, and what the theory says about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.coverage import CoverageEntry
from ..results.result import Result
from ..results.schema import Count, uneven, unsummed


@dataclass(frozen=True)
class Component:
    """One operation of one module: relevance that enters from the output's side, and leaves towards the inputs.

    Means over samples. `entering = leaving + constants + leak`.
    """

    module: str
    function: str
    kind: str
    """attention, norm, activation, product, linear, or other."""
    rule: str
    """The rule it met, or nothing where it needs none."""
    entering: float
    leaving: float
    constants: float
    """What biases, positions and other constants that join here take."""
    leak: float
    """What is lost here, or, below 0, counted twice."""
    size: float
    """The mean of the leak's size over samples, which does not cancel: by this components are ranked."""

    def _flaws(self) -> Iterator[str]:
        yield from unsummed("leak", (self.leaving, self.constants, self.leak), self.entering, "entering")

    @property
    def layer(self) -> str:
        """The layer that the module is a part of, or the part of the model where it is in none."""
        return layer_of(self.module)


@dataclass(frozen=True)
class Head:
    """One attention head, against Proposition 1 of Ali et al. (2022), in the general form of its appendix."""

    module: str
    head: int
    entering: float
    """Relevance of the head's output."""
    values: float
    queries: float
    keys: float
    """What leaves through each."""
    covariance: float
    """What Proposition 1 says is counted twice: 2 sum_j Cov_j(scores, values) . dF/dy_j."""

    @property
    def broke(self) -> float:
        """What was measured: more leaves than enters."""
        return self.values + self.queries + self.keys - self.entering


@dataclass(frozen=True)
class Norm:
    """One norm, against Proposition 2 of Ali et al. (2022): what leaves is eps / (eps + Var) of what enters."""

    module: str
    entering: float
    """Relevance of its output, that of its bias left out."""
    leaving: float
    predicted: float
    """What Proposition 2 says must leave under the plain gradient."""
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    """Relevance of each place of the first sample below and above the norm: figure 2 of the paper."""

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "before", "after")


@dataclass(frozen=True, repr=False)
class Audit(Result):
    """Conservation and coverage of a model under one rule set.

    Examples
    --------
    >>> found = conserva.audit(conserva.load(), "a joy.", rules="gi")
    >>> found.relative_gap() > 0.01
    True
    """

    _schema = "conserva/audit/1"
    _noun = "audit"
    _in_repr = ("rules", "model", "samples", "output", "gap")

    rules: str
    model: str
    target: str
    samples: Count
    output: float
    inputs: float
    positions: float
    biases: float
    gap: float
    """The ledger, as means over samples: output = inputs + positions + biases + gap, and gap = sum of all leaks."""
    components: tuple[Component, ...]
    """In the order of the forward pass."""
    heads: tuple[Head, ...]
    norms: tuple[Norm, ...]
    outputs: tuple[float, ...]
    sums: tuple[float, ...]
    """For each sample the explained number and the sum of its inputs' relevance: figure 3 of the paper."""
    gaps: tuple[float, ...]
    coverage: tuple[CoverageEntry, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def ranked(self) -> list[Component]:
        """Return the components that break conservation, the largest first."""
        broken = [one for one in self.components if one.size > 0]
        return sorted(broken, key=lambda one: -one.size)

    def layers(self) -> dict[str, tuple[float, float]]:
        """Return for each layer, from the output down, what its constants take and what leaks."""
        found: dict[str, tuple[float, float]] = {}
        for one in reversed(self.components):
            constants, leak = found.get(one.layer, (0.0, 0.0))
            found[one.layer] = (constants + one.constants, leak + one.leak)
        return found

    def kinds(self) -> dict[str, float]:
        """Return what leaks in each kind of operation."""
        found: dict[str, float] = {}
        for one in self.components:
            found[one.kind] = found.get(one.kind, 0.0) + one.leak
        return found

    def relative_gap(self) -> float:
        """Return the largest gap of a sample, as a share of the largest output."""
        scale = max((abs(one) for one in self.outputs), default=0.0)
        return max((abs(one) for one in self.gaps), default=0.0) / (scale or 1.0)

    def draw_norm(self, module: str, path: str | Path) -> None:
        """Draw the relevance of each place before and after one norm: figure 2 of the paper."""
        self._renderers["norm"](self, module, path)

    def draw_scatter(self, path: str | Path) -> None:
        """Draw the sum of the inputs' relevance against the output, a point for each sample: figure 3 of the paper."""
        self._renderers["sums"](self, path)

    def _flaws(self) -> Iterator[str]:
        yield from uneven(self, "outputs", "sums", "gaps")
        yield from unsummed("the ledger", (self.inputs, self.positions, self.biases, self.gap), self.output)
        if not self.components:
            yield "components has no entry"


def layer_of(module: str) -> str:
    """Return the layer that a module's name tells, as `encoder.layer.3`; else its first two parts."""
    numbered = re.match(r"^(.*?\.\d+)(\.|$)", module)
    return numbered.group(1) if numbered else ".".join(module.split(".")[:2]) or "the model itself"
