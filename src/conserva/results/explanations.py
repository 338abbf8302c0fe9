"""Collections of explanations: of many inputs by one method, or of one input by many methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from ..errors import Error
from .correlation import rank_correlations
from .explanation import Explanation
from .result import Result, Self
from .schema import repeated
from .table import Row, data_frame, method_columns, row_columns, rows_of


class _Several(Result, Sequence[Explanation]):
    """A result that is a sequence of explanations. It equals any sequence of the same explanations."""

    explanations: tuple[Explanation, ...]

    @overload
    def __getitem__(self, index: int) -> Explanation: ...

    @overload
    def __getitem__(self: Self, index: slice) -> Self: ...

    def __getitem__(self: Self, index: int | slice) -> Explanation | Self:
        chosen = self.explanations[index]  # type: ignore[attr-defined]
        return replace(self, explanations=chosen) if isinstance(index, slice) else chosen  # type: ignore[type-var]

    def __len__(self) -> int:
        return len(self.explanations)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # unhashable, like a list

    def each(self: Self, change: Callable[[Explanation], Explanation]) -> Self:
        """Return a copy with a function applied to every explanation: `result.each(Explanation.merged)`."""
        return replace(self, explanations=tuple(map(change, self.explanations)))  # type: ignore[type-var,attr-defined]


@dataclass(frozen=True, repr=False, eq=False)
class Explanations(_Several):
    """Explanations of many inputs, in order: the result of `conserva.explain` for a list.

    Examples
    --------
    >>> many = conserva.explain(conserva.load(), ["a joy.", "a bore."])
    >>> [one.target for one in many]
    ['positive', 'negative']
    """

    explanations: tuple[Explanation, ...]

    _schema = "conserva/explanations/1"
    _noun = "list of explanations"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row per explanation, in the columns of a saved table.

        Examples
        --------
        >>> many = conserva.explain(conserva.load(), ["a joy.", "a bore."])
        >>> many.to_pandas()[["text", "target"]].values.tolist()
        [['a joy.', 'positive'], ['a bore.', 'negative']]
        """
        return data_frame(row_columns(self), "Explanations.to_pandas()")

    def to_shap(self, *, by_name: bool = False) -> Any:
        """Return a `shap.Explanation` with a row per explanation, for shap's plots.

        Values and base values are those of `Explanation.to_shap`. Needs `pip install 'conserva[shap]'`.

        Parameters
        ----------
        by_name
            Whether features with the same name are one column, as `shap.plots.beeswarm` needs it: `values` are the sums
            of their scores, 0 where a text does not have them, and `data` tells how often each text has them. Otherwise
            each row has the features of its text, in order, for `shap.plots.text` and `shap.plots.bar`.

        Returns
        -------
        shap.Explanation
            If the explanations have different targets, its `output_names` lists them.
        """
        return self._renderers["shap"](self, by_name=by_name)

    def _rows(self) -> Iterable[Row]:
        return rows_of(self)

    def __repr__(self) -> str:
        return f"Explanations({len(self)} explanation{'' if len(self) == 1 else 's'})"


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(_Several):
    """Explanations of one input by several methods: the result of `conserva.compare`.

    Examples
    --------
    >>> comparison = conserva.compare(conserva.load(), "a joy.", methods=["gi", "exact"])
    >>> comparison.of("exact").target
    'positive'
    """

    explanations: tuple[Explanation, ...]
    """One for each method that applies to the model, in the order of the given methods."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The methods that do not apply to the model, each with the reason."""

    _schema = "conserva/comparison/1"
    _noun = "comparison"

    correlations = rank_correlations

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that apply to the model."""
        return tuple(explanation.method for explanation in self.explanations)

    def of(self, method: str) -> Explanation:
        """Return the explanation by a method."""
        for explanation in self.explanations:
            if explanation.method == method:
                return explanation
        why = f" It was refused: {self.refused[method]}" if method in self.refused else ""
        raise Error(f"method={method!r} is not in this comparison, which has {', '.join(self.methods)}.{why}")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row per feature: the columns of `Explanation.to_pandas`, without the
        score, and one column per method.

        Examples
        --------
        >>> comparison = conserva.compare(conserva.load(), "a joy.", methods=["gi", "exact"])
        >>> list(comparison.to_pandas().columns)
        ['feature', 'start', 'end', 'special', 'word', 'section', 'gi', 'exact']
        """
        return data_frame(method_columns(self), "Comparison.to_pandas()")

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.refused == getattr(other, "refused", self.refused)

    def __repr__(self) -> str:
        first = f"target={self[0].target!r}, model={self[0].model!r}, " if self else ""
        return f"Comparison({first}methods={self.methods!r})"

    def _flaws(self) -> Iterator[str]:
        yield from repeated("explanations", self.methods)
