"""The sentences that differ between the pages of the text and of the graph experiment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...views.evaluation_wording import protocol_line
from ...views.evaluation_wording import value_text as shown
from ...views.markdown import file_name, listed
from ..experiments.findings import columns, short_name
from ..experiments.result import AnyResult, GraphResult
from .cells import seeds_of

MASKINGS: Mapping[str, str] = {
    "token": "no other node attends to a removed node; the others keep degrees, distances and paths of the whole graph",
    "induced": "degrees, distances and paths are computed anew in the subgraph of the nodes that are left",
    "blank": "a removed node stays in its place without its features: a superpixel becomes black",
}
"""What happens to nodes that are removed."""


class Wording(ABC):
    """The words for a kind of data."""

    name: ClassVar[str]
    """What the samples are called."""
    unit: ClassVar[str]
    """What a sample consists of."""
    command: ClassVar[str]
    """The experiment's name on the command line."""
    examples_page: ClassVar[str]
    conservation: ClassVar[str]
    """What the table of ledgers shows."""
    sums: ClassVar[str]
    """What the scatter plots show."""
    correlations: ClassVar[str]
    """Of which models the correlation and the slope beside the scatter plots are."""
    chosen: ClassVar[str]
    """How the examples were chosen."""

    @abstractmethod
    def examples_picture(self, result: AnyResult) -> str:
        """Return the name of the picture of a dataset's examples."""

    @abstractmethod
    def start(self, results: Sequence[AnyResult]) -> list[str]:
        """Return the paragraphs that say what was run."""

    @abstractmethod
    def protocol(self, results: Sequence[AnyResult]) -> str:
        """Return the protocol in one line."""

    @abstractmethod
    def options(self, results: Sequence[AnyResult]) -> str:
        """Return the options of the command that ran the experiment."""


class _Texts(Wording):
    name, unit, command = "texts", "tokens", "text"
    examples_page = "sentences.html"
    conservation = (
        "The sum of the scores and the explained output, as in figure 3 of the paper: correlation, slope, and "
        "the mean of |output - sum|; 1, 1 and 0 where scores add up to the output. Biases keep a part of the output: "
        "under exact that is the whole gap."
    )
    correlations = "the mean over models"
    sums = "Sum of the scores against the explained output, the logit of the true class; on the line both agree."
    chosen = (
        "As in figure 5 and appendix D of the paper: the first short test text of each class that is classified "
        "correctly, and for SST-2 two sentences of its validation split. They were not selected by hand, so some may "
        "offend. Explained is the logit of the predicted class"
    )

    def examples_picture(self, result: AnyResult) -> str:
        return f"sentences-{file_name(result.dataset)}.png"

    def start(self, results: Sequence[AnyResult]) -> list[str]:
        protocol = next(iter(results[0].evaluations.values())).protocol
        base = listed([f"`{name}`" for name in dict.fromkeys(shown(one.recipe.get("embeddings")) for one in results)])
        quirks = ", with the quirks of the authors' released code" if self.options(results) else ""
        special = "including" if protocol.get("special") else "except"
        return [
            f"Models of three attention-only blocks on frozen embeddings of {base}{quirks}, trained for each dataset "
            f"with {_seeds(results)}. Explained is the logit of the {shown(protocol.get('target'))} class. Scores of "
            f"GI, LRP, exact and AttnLRP are those at the output of the embedding block. Tokens, {special} special "
            f"tokens, are replaced by the token `{shown(protocol.get('mask'))}` in "
            f"{shown(protocol.get('steps'))} steps "
            f"(protocol `{shown(protocol.get('name'))}`)."
        ]

    def protocol(self, results: Sequence[AnyResult]) -> str:
        return protocol_line(next(iter(results[0].evaluations.values())))

    def options(self, results: Sequence[AnyResult]) -> str:
        return " --as-released" if any(one.recipe.get("as_released") for one in results) else ""


class _Graphs(Wording):
    name, unit, command = "graphs", "nodes", "graphs"
    examples_page = "examples.html"
    conservation = (
        "logit = nodes + virtual node + biases + gap, as in figure 3 of the paper, of the true class, in float64. "
        "First: correlation of the logit with the relevance of nodes and virtual node together, slope of that on the "
        "logit, and the correlation after the relevance of biases is subtracted from the logit. Then the means of "
        "|entry| over graphs, and the largest gap."
    )
    correlations = "on that model"
    sums = (
        "Relevance of all nodes and the virtual node together against the explained output, the logit of the true "
        "class, in float64; on the line both agree."
    )
    chosen = (
        "As in figure 6 and appendix E of the paper: the first test graphs of each class, in turn, whatever the model "
        "predicts for them. Explained is the logit of the true class"
    )

    def examples_picture(self, result: AnyResult) -> str:
        return f"{file_name(result.dataset)}-examples.png"

    def start(self, results: Sequence[AnyResult]) -> list[str]:
        protocol = next(iter(results[0].evaluations.values())).protocol
        steps = listed([f"{one.title} {one.extent} on {_count(one):,} test graphs" for one in results])
        classes = listed([f"{len(one.labels)} on {one.title}" for one in results])
        parts = [
            f"Graphormers, trained for each dataset with {_seeds(results)}. Explained is the logit of the "
            f"{shown(protocol.get('target'))} class; scores are those of the nodes' tokens, the sum of their features "
            "and degrees. Nodes are added, the highest scores first, or removed, the smallest |scores| first; the "
            f"virtual node always stays (protocol `{shown(protocol.get('name'))}`): {steps}. The paper does not say "
            "how nodes are removed, so it is done in several ways:",
            "\n".join(
                f"- `{one}`: {MASKINGS.get(one, '')}." for one in dict.fromkeys(c.mask for c in columns(results))
            ),
            "AUAC is the area under the probability of the class as nodes are added, AU-MSE the area under the squared "
            "change of the logits as nodes are removed, both over the share of nodes from 0 to 1. Squared changes are "
            f"summed over the logits: {classes}. The paper gives neither the width of the models, nor the split of "
            "BACE, nor how an area is normalised, nor whether squared changes are summed or averaged, nor how many "
            "graphs were evaluated: the order of methods can be compared with it, levels only with care.",
        ]
        if any(one.row("intensity") for one in columns(results)):
            parts.append(
                "`intensity` is the order of brightness, which looks at no model. A blanked superpixel is black, so "
                "showing the bright ones first shows the digit: under `blank` a method has to beat that order."
            )
        return parts

    def protocol(self, results: Sequence[AnyResult]) -> str:
        protocol = next(iter(results[0].evaluations.values())).protocol
        steps = [f"{short_name(one)} {_count(one):,} graphs, {one.extent}" for one in results]
        parts = [
            f"protocol {shown(protocol.get('name'))}",
            f"target class {shown(protocol.get('target'))}",
            *steps,
        ]
        return " · ".join(parts)

    def options(self, results: Sequence[AnyResult]) -> str:
        changed = any(isinstance(one, GraphResult) and not one.shape.get("pre_norm", True) for one in results)
        return " --post-norm" if changed else ""


def wording_of(results: Sequence[AnyResult]) -> Wording:
    """Return the words for the results of one experiment."""
    return _Graphs() if isinstance(results[0], GraphResult) else _Texts()


def _seeds(results: Sequence[AnyResult]) -> str:
    return seeds_of(list(dict.fromkeys(model.seed for one in results for model in one.trained)))


def _count(result: AnyResult) -> int:
    return max(one.samples for one in result.evaluations.values())
