"""Weights of a blueprint in the number format that they are computed in."""

from __future__ import annotations

import torch

from tasks.decoding.runtimes.blueprint import CrossAttention, Layer, Linear, Norm


def layer_in(layer: Layer, dtype: torch.dtype) -> Layer:
    """In that number format; what reads the source is left out, since it is one matrix of all layers: see `joined`."""
    cross = layer.cross
    return Layer(
        norm=norm_in(layer.norm, dtype),
        query_key_value=linear_in(layer.query_key_value, dtype),
        out=linear_in(layer.out, dtype),
        cross=None
        if cross is None
        else CrossAttention(
            norm_in(cross.norm, dtype), linear_in(cross.query, dtype), Linear(torch.empty(0)), linear_in(cross.out, dtype)
        ),
        feed_norm=norm_in(layer.feed_norm, dtype),
        feed_in=linear_in(layer.feed_in, dtype),
        feed_out=linear_in(layer.feed_out, dtype),
    )


def joined(linears: list[Linear]) -> Linear:
    """One matrix of several that read the same."""
    biases = [one.bias for one in linears if one.bias is not None]
    return Linear(torch.cat([one.weight for one in linears]), torch.cat(biases) if biases else None)


def norm_in(norm: Norm, dtype: torch.dtype) -> Norm:
    """In that number format."""
    return Norm(norm.weight.detach().to(dtype), None if norm.bias is None else norm.bias.detach().to(dtype))


def linear_in(linear: Linear, dtype: torch.dtype, outputs: int | None = None) -> Linear:
    """In that number format: the first `outputs` of it."""
    bias = None if linear.bias is None else linear.bias.detach()[:outputs].to(dtype)
    return Linear(linear.weight.detach()[:outputs].to(dtype), bias)
