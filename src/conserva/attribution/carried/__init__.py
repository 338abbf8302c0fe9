"""Relevance itself, carried through the backward pass by the rules of Chefer et al. (CVPR 2021).

Every call gets a function whose backward maps the relevance of its output to that of its inputs, where autograd would
map gradients. Calls that only move values (views, indexing, joining) do the same to both. The rules:

- linear layers, convolutions, sums and means over places: R_j = sum_i (x_j w_ij)+ / sum_k (x_k w_ik)+ R_i
- a product of live tensors: each operand gets x dz/dx R / z, and then half of it
- a sum of live tensors: each gets x R / z, scaled so that their sums share that of R by their sizes, sample by sample
- softmax, norms, activations, constant factors: R is passed on; constants that are added take none
"""

from .carrier import Carrier

__all__ = ["Carrier"]
