"""Names of torch calls, by what they do with integer tensors."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IN_PLACE = {f"__i{name}__" for name in _words("add sub mul floordiv mod and or xor lshift rshift truediv pow div")}

FLOAT_CASTS = _words("float double half bfloat16")
CASTS = _words("to long int short char byte type type_as cpu cuda")

MOVES = _words(
    """view reshape view_as reshape_as clone contiguous expand expand_as repeat tile flip fliplr flipud roll unsqueeze
    squeeze transpose permute movedim moveaxis swapaxes swapdims t narrow select split split_with_sizes tensor_split
    chunk unbind unfold flatten unflatten ravel __getitem__ index_select gather take take_along_dim repeat_interleave
    masked_select diagonal diag_embed rot90 detach alias as_strided broadcast_to atleast_1d atleast_2d adjoint
    unsafe_chunk unsafe_split hsplit vsplit data pin_memory narrow_copy tril_indices __iter__ __reversed__"""
)
"""Calls whose result consists of elements of their first argument, or of an integer table indexed by ids."""

RESHAPED_IN_PLACE = _words("unsqueeze_ squeeze_ transpose_ t_ swapaxes_ swapdims_ detach_ as_strided_")

CONCATENATIONS = _words("cat concat concatenate stack hstack vstack dstack column_stack row_stack")

VALUE_NAMES = ("tensors", "input", "self", "other", "value", "values", "src", "source")

_OUT_OF_PLACE_JOINS = {
    **dict.fromkeys(CONCATENATIONS, (0,)),
    "where": (0, 1, 2),
    "pad": (0,),
    "masked_fill": (0, 2),
    "index_put": (0, 2),
    "index_fill": (0, 3),
    "index_copy": (0, 3),
    "scatter": (0, 3),
    "masked_scatter": (0, 2),
    "select_scatter": (0, 1),
    "slice_scatter": (0, 1),
    "fill": (0, 1),
    "copy": (0, 1),
    "zero": (0,),
}

JOINS: dict[str, tuple[int, ...]] = {
    **_OUT_OF_PLACE_JOINS,
    **{f"{name}_": positions for name, positions in _OUT_OF_PLACE_JOINS.items()},
    "__setitem__": (0, 2),
}
"""Calls that combine elements of several arguments -> the positions of these arguments."""

ELEMENTWISE = _words(
    """add sub subtract rsub mul multiply remainder fmod mod floor_divide floordiv div divide clamp clamp_min clamp_max
    clip minimum maximum fmin fmax bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift and or xor lshift
    rshift bitwise_right_shift neg negative abs absolute square pow positive sign radd rmul rfloordiv rmod rand ror rxor
    nan_to_num"""
)
"""Elementwise arithmetic: with constants, each element of the result depends on one element of the ids."""

FRESH = _words("zeros_like ones_like full_like empty_like rand_like randn_like randint_like numel size")
