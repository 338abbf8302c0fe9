"""captum: conservative relevance as attribution algorithms, of inputs and of layers."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._util.extras import require
from ..engine.context import Propagation, as_rule_set
from ..engine.passes import INPUTS, Relevance
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RuleSet
from ..errors import Error

require("conserva.integrations.captum", "captum")

from captum.attr import GradientAttribution, LayerGradientXActivation  # noqa: E402
from captum.attr._core.llm_attr import GradientForwardFunc  # noqa: E402
from captum.log import log_usage  # noqa: E402

from .forward_functions import Call, ForwardFunction, selected  # noqa: E402

__all__ = ["ConservativeAttribution", "LayerConservativeAttribution"]


class _Conservative:
    """What both algorithms have in common: rules, and the convergence delta."""

    forward_func: Callable[..., Any]
    rules: RuleSet

    @property
    def multiplies_by_inputs(self) -> bool:
        """True: attributions are products with the inputs or with the layer's output."""
        return True

    def has_convergence_delta(self) -> bool:
        """Return True: `attribute` returns a delta on request."""
        return True

    def attribute_future(self) -> None:
        """Raise: there are no futures, as for most algorithms of captum."""
        raise NotImplementedError(f"{type(self).__name__} has no attribute_future: call attribute.")

    def compute_convergence_delta(
        self,
        attributions: Tensor | tuple[Tensor, ...],
        start_point: Any,
        end_point: Tensor | tuple[Tensor, ...],
        target: Any = None,
        additional_forward_args: Any = None,
    ) -> Tensor:
        """Return for each sample the sum of its attributions minus F(end_point), plus F(start_point) if it is given.

        Parameters
        ----------
        attributions
            The attributions of `end_point`.
        start_point
            None: relevance splits the whole output, not its difference to the output for a baseline. The result is then
            the delta that `attribute` returns. With a baseline, captum's own formula is used.
        end_point
            The inputs that were attributed.
        target, additional_forward_args
            As in `attribute`.
        """
        others = _others(additional_forward_args)
        if start_point is not None:
            of_captum = GradientAttribution.compute_convergence_delta
            delta: Tensor = of_captum(self, attributions, start_point, end_point, target, others)
            return delta
        given = _tensors(end_point)
        *args, wanted = Call.of_captum(given, others, target).args
        with torch.no_grad():
            number = selected(_function(self.forward_func)(*args), wanted, len(given[0]))
        sums = [x.reshape(len(x), -1).sum(1) for x in _tensors(attributions)]
        return torch.stack(sums).sum(0) - number

    def _relevance(self, call: Call, layers: Sequence[nn.Module]) -> tuple[Relevance, list[list[str]]]:
        """Return the relevance, and the sites of each of the layers, or else of each of the inputs."""
        module = ForwardFunction(_function(self.forward_func), call, layers)
        sites = [module.sites(layer) for layer in layers]
        names = dict.fromkeys(name for each in sites for name in each)
        at = list(map(glob.escape, names)) if layers else INPUTS  # the names of modules are no patterns
        result = relevance(module, call, module.selected, rules=self.rules, at=at)
        return result, sites or [[name] for name in call.features()]


class ConservativeAttribution(_Conservative, GradientAttribution):  # type: ignore[misc]
    """Conservative relevance of a model's inputs: `x * dF/dx` under a rule set.

    All checks of `conserva.relevance` apply: an operation that no rule covers raises `conserva.Error`. So does a model
    without attention, unless `rules` say that there is none: `conserva.rules("exact", attention="refuse")`.

    Parameters
    ----------
    forward_func
        A model, or a function that calls models. It returns a tensor whose first dimension is the batch. A function may
        also end in a log-probability of a model's output; see docs/doors/captum.md.
    rules
        The name of a rule set, or the result of `conserva.rules(...)`.

    Examples
    --------
    >>> from conserva.integrations.captum import ConservativeAttribution
    >>> task = conserva.load()
    >>> ids = task.tokenizer("a joy.", return_tensors="pt")["input_ids"]
    >>> x = task.model.get_input_embeddings()(ids).detach()
    >>> method = ConservativeAttribution(lambda x: task.model(inputs_embeds=x).logits)
    >>> attributions, delta = method.attribute(x, target=1, return_convergence_delta=True)
    >>> attributions.shape == x.shape, delta.shape
    (True, torch.Size([1]))
    """

    def __init__(self, forward_func: Callable[..., Tensor], rules: str | RuleSet | Propagation = DEFAULT) -> None:
        super().__init__(forward_func)
        self.rules = as_rule_set(rules)

    @log_usage(part_of_slo=True)  # type: ignore[untyped-decorator] # NoiseTunnel needs it
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:
        """Return the relevance of every element of the inputs.

        Parameters
        ----------
        inputs
            A floating-point tensor with the batch first, such as embeddings or pixels, or a tuple of them.
        target
            What to explain: an index into a sample's output, a tuple of indices, or a list or tensor with one for each
            sample. None if the output has one number for each sample.
        additional_forward_args
            Another argument of `forward_func`, or a tuple of them. They are constants.
        return_convergence_delta
            Whether to return also a delta for each sample: the sum of its attributions minus its output, captum's
            `sum - (F(end) - F(start))` with 0 for F(start). It is minus the rest of the ledger:
            `-(positions + biases + gap)`.

        Returns
        -------
        Tensor or tuple
            The attributions, in the shape of the inputs, in float32 or wider. With the delta a pair of both.
        """
        given = _tensors(inputs)
        for i, x in enumerate(given):
            if not x.is_floating_point():
                raise Error(
                    f"inputs[{i}] is {x.dtype}, which has no gradient: give embeddings or pixels, or attribute ids at "
                    "the output of an embedding layer with LayerConservativeAttribution(forward_func, layer)."
                )
        call = Call.of_captum(given, _others(additional_forward_args), target)
        result, names = self._relevance(call, [])
        found = tuple(result.values[name] for [name] in names)
        return _returned(found if isinstance(inputs, tuple) else found[0], result, return_convergence_delta)


class LayerConservativeAttribution(_Conservative, LayerGradientXActivation):  # type: ignore[misc]
    """Conservative relevance of the outputs of layers. `LLMGradientAttribution` accepts it.

    What happens before the layers is a constant: the ledger splits the output among the layers' outputs and the
    constants that enter after them or beside them.

    Parameters
    ----------
    forward_func
        As in `ConservativeAttribution`.
    layer
        A module that is called once, or a list of modules.
    rules
        The name of a rule set, or the result of `conserva.rules(...)`.

    Examples
    --------
    >>> from conserva.integrations.captum import LayerConservativeAttribution
    >>> task = conserva.load()
    >>> ids = task.tokenizer("a joy.", return_tensors="pt")["input_ids"]
    >>> layer = task.model.get_input_embeddings()
    >>> method = LayerConservativeAttribution(lambda ids: task.model(ids).logits, layer)
    >>> method.attribute(ids, target=1).sum(-1).shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: nn.Module | list[nn.Module],
        rules: str | RuleSet | Propagation = DEFAULT,
    ) -> None:
        super().__init__(forward_func, layer)
        self.rules = as_rule_set(rules)

    @log_usage(part_of_slo=True)  # type: ignore[untyped-decorator] # NoiseTunnel needs it
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: Any = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        return_convergence_delta: bool = False,
    ) -> Any:
        """Return the relevance of every element of the layer's output.

        Parameters
        ----------
        inputs
            The inputs, with the batch first; here they may be token ids.
        target, additional_forward_args
            As in `ConservativeAttribution`.
        attribute_to_layer_input
            Must be False: relevance is read at outputs of modules.
        return_convergence_delta
            As in `ConservativeAttribution`; for a single layer only.

        Returns
        -------
        Tensor, list or tuple
            The attributions in the shape of the layer's output: a tuple if it is a tuple of several floating-point
            tensors. A list of them if `layer` is a list. With the delta a pair of both.
        """
        if attribute_to_layer_input:
            raise Error("attribute_to_layer_input=True: relevance is read at outputs. Give the layer before this one.")
        several = isinstance(self.layer, (list, tuple))
        layers = list(self.layer) if several else [self.layer]
        if not layers or not all(isinstance(layer, nn.Module) for layer in layers):
            raise Error(f"layer={self.layer!r:.80}: give a module of the model, or a list of one or more.")
        if several and return_convergence_delta:
            raise Error("return_convergence_delta=True with a list of layers: each has its own. Give one layer.")
        call = Call.of_captum(_tensors(inputs), _others(additional_forward_args), target)
        result, names = self._relevance(call, layers)
        parts = [tuple(result.values[name] for name in each) for each in names]
        found = [each if len(each) > 1 else each[0] for each in parts]
        return _returned(found if several else found[0], result, return_convergence_delta)


def _function(forward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function to explain; of captum's wrapper of a language model the method that calls the model."""
    if not callable(forward_func):
        raise Error(f"forward_func={forward_func!r:.80} cannot be called: give a model, or a function that calls one.")
    return forward_func.forward if isinstance(forward_func, GradientForwardFunc) else forward_func


def _tensors(inputs: Any) -> tuple[Tensor, ...]:
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    if not given or not all(isinstance(x, Tensor) for x in given):
        raise Error(f"inputs is {_kinds(inputs)}: captum takes a tensor or a tuple of tensors.")
    return given


def _kinds(inputs: Any) -> str:
    if not isinstance(inputs, tuple):
        return type(inputs).__name__
    return f"a tuple of {', '.join(type(x).__name__ for x in inputs) or 'nothing'}"


def _others(additional: Any) -> tuple[Any, ...]:
    if additional is None:
        return ()
    return additional if isinstance(additional, tuple) else (additional,)


def _returned(attributions: Any, result: Relevance, with_delta: bool) -> Any:
    if not with_delta:
        return attributions
    ledger = result.ledger
    assert ledger is not None
    return attributions, -(ledger.positions + ledger.biases + ledger.gap)
