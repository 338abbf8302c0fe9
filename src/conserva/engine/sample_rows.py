"""Detection of calls that may move samples away from dimension 0.

As long as all calls keep the rows of every sample in place, the ledger knows where each sample is. After any other call
it infers that from shapes, and verifies it with a second gradient: see `Constants.in_doubt`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .context import Propagation
from .operations.tensor_attributes import TensorAttributes
from .operations.tensors import live


class Batched(Propagation):
    """The context for several samples: it watches for calls that may move samples away from dimension 0."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if (
            self.constants is not None
            and self.constants.follows_rows
            and not keeps_rows(self.attributes, func, args, kwargs or {}, out)
        ):
            self.constants.in_doubt = True
        return out


def keeps_rows(
    attributes: TensorAttributes, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> bool:
    """Return whether a call is known to keep the rows of every sample in place.

    Parameters
    ----------
    attributes
        Where attributes of tensors are registered.
    function, args, kwargs, out
        The torch call and its result.
    """
    name = _name(function)
    if name in _SAFE:  # most calls
        return True
    if name == "arange":
        if isinstance(out, Tensor) and len(args) == 1:
            attributes.set(out, "conserva_counts", True)  # `x[torch.arange(len(x)), i]` selects one row of each sample
        return True
    given = [x for x in _flat((*args, *kwargs.values()) if kwargs else args) if type(x) is Tensor and x.requires_grad]
    outs = [out] if type(out) is Tensor else _flat(out) if isinstance(out, (list, tuple)) else []
    outs = [x for x in outs if isinstance(x, Tensor) and x.requires_grad]
    if not outs and name != "__setitem__":
        return True
    if not given:
        return name in _LOOK_UPS or not outs
    first = given[0]
    for x in (*given, *outs):
        if not x.dim() or x.shape[0] != first.shape[0]:
            return False
    if name in _ELEMENTWISE:
        return all(x.dim() == first.dim() for x in (*given, *outs))
    if name in _MATRIX_PRODUCTS:
        return first is args[0] or first.dim() > 2
    if name in _MOVING:
        return first.stride(0) == outs[0].stride(0)
    if name in _ALONG_AXIS:
        return _along_another_axis(name, args, kwargs, first.dim())
    if name in ("__getitem__", "__setitem__"):
        return _leaves_first_axis(args[1], first)
    if name == "einsum":
        return _first_letters_stay(args)
    return name in _ROW_BY_ROW


@functools.lru_cache(maxsize=1024)
def _name(function: Callable[..., Any]) -> str:
    """Return the name of a call, without the underscore of in-place calls."""
    name = str(getattr(function, "__name__", "")).split(".")[0]  # aten overloads are called "add.Tensor"
    return name if name.startswith("__") else name.rstrip("_")


def _flat(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for x in values:
        flat.extend(_flat(x) if isinstance(x, (list, tuple)) else (x,))
    return flat


def _along_another_axis(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], axes: int) -> bool:
    """Return whether a call that works along some dimensions leaves dimension 0 alone."""
    given = [kwargs[key] for key in ("dim", "dims", "axis") if key in kwargs]
    at = _ALONG_AXIS[name]
    along = given[0] if given else args[at] if len(args) > at else _DEFAULT.get(name)
    wanted = along if isinstance(along, (list, tuple)) else (along,)
    added = 1 if name == "stack" else 0
    return all(isinstance(axis, int) and axis % (axes + added) != 0 for axis in wanted)


def _leaves_first_axis(index: Any, x: Tensor) -> bool:
    first = index[0] if isinstance(index, tuple) and index else index
    if isinstance(first, Tensor):
        return "conserva_counts" in vars(first) and len(first) == len(x)
    return first is Ellipsis or (isinstance(first, slice) and first == slice(None))


def _first_letters_stay(args: Sequence[Any]) -> bool:
    equation, *operands = args
    names, _, result = equation.replace(" ", "").partition("->")
    return all(
        name[:1] == result[:1]
        for name, x in zip(names.split(","), _flat(operands), strict=True)
        if live(x) and not isinstance(x, nn.Parameter)
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOOK_UPS = _words("embedding embedding_bag __getitem__ index_select gather take take_along_dim matmul linear")
_HARMLESS = _words("__get__ __set__ dim size numel stride is_contiguous data_ptr requires_grad backward register_hook")
_RESHAPING = _words(
    """view reshape flatten unflatten view_as reshape_as contiguous clone to type type_as float double half bfloat16
    detach unsqueeze squeeze alias"""
)
"""Calls that keep the elements in row-major order."""
_SAFE = _HARMLESS | _RESHAPING
_ELEMENTWISE = _words(
    """add __add__ __radd__ __iadd__ sub subtract __sub__ __rsub__ __isub__ rsub mul multiply __mul__ __rmul__ __imul__
    div divide true_divide __truediv__ __itruediv__ __rtruediv__ neg negative __neg__ pow __pow__ square sqrt rsqrt exp
    log abs sin cos tanh sigmoid relu gelu silu mish softplus leaky_relu elu selu hardswish hardtanh erf clamp clamp_min
    clamp_max clip where masked_fill addcmul lerp dropout tanh_ nan_to_num minimum maximum hardsigmoid relu6 log_sigmoid
    logsigmoid reciprocal expm1 log1p softsign celu threshold quick_gelu floor round sign fill zero"""
)
_MATRIX_PRODUCTS = _words("matmul __matmul__ bmm mm baddbmm")
_MOVING = _words("transpose permute movedim moveaxis swapaxes swapdims t")
_ROW_BY_ROW = _words(
    """linear layer_norm rms_norm group_norm batch_norm instance_norm scaled_dot_product_attention conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d interpolate max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d
    adaptive_avg_pool2d addmm pad normalize bilinear glu pixel_shuffle pixel_unshuffle unfold fold expand_as expand"""
)
_ALONG_AXIS = {
    **dict.fromkeys(
        _words(
            """softmax log_softmax sum mean amax amin var std cumsum logsumexp norm max min unbind cat concat
            concatenate stack select flip narrow argmax"""
        ),
        1,
    ),
    **dict.fromkeys(_words("split chunk split_with_sizes roll"), 2),
}
"""Calls that work along a dimension -> the position of their argument `dim`."""
_DEFAULT = dict.fromkeys(_words("unbind cat concat concatenate stack split chunk split_with_sizes"), 0)
