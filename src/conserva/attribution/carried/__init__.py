"""Backward passes that propagate relevance instead of gradients, by the rules of Chefer et al. (CVPR 2021).

Every call is replaced by an autograd function whose backward maps the relevance of its output to the relevance of its
inputs. Calls that only move values (views, indexing, concatenation) treat relevance as they treat gradients. The rules:

- linear layers, convolutions, sums and means over positions: R_j = sum_i (x_j w_ij)+ / sum_k (x_k w_ik)+ R_i
- a product of live tensors: each factor gets half of x dz/dx R / z
- a sum of live tensors: each summand gets x R / z, rescaled for each sample so that the totals of the summands are in
  the ratio of their absolute values and add up to the total of R
- softmax, norms, activations, constant factors: R is passed on unchanged; added constants get no relevance
"""

from .carrier import Carrier

__all__ = ["Carrier"]
