"""Conversion of a blueprint's weights to the number format of the computation."""

from __future__ import annotations

import torch

from tasks.decoding.runtimes.blueprint import CrossAttention, Layer, Linear, Norm


def layer_in(layer: Layer, dtype: torch.dtype) -> Layer:
    """Convert a layer. The source's key-value projection is left out, because all layers share one matrix: see `joined`."""
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
    """Join several projections of the same input into one matrix."""
    biases = [one.bias for one in linears if one.bias is not None]
    return Linear(torch.cat([part for one in linears for part in one.parts]), torch.cat(biases) if biases else None)


def norm_in(norm: Norm, dtype: torch.dtype) -> Norm:
    """Convert a norm."""
    return Norm(norm.weight.detach().to(dtype), None if norm.bias is None else norm.bias.detach().to(dtype))


def linear_in(linear: Linear, dtype: torch.dtype, outputs: int | None = None) -> Linear:
    """Convert the first `outputs` rows of a projection, and join its parts."""
    bias = None if linear.bias is None else linear.bias.detach()[:outputs].to(dtype)
    weight = torch.cat([part.detach() for part in linear.parts]) if linear.further else linear.weight.detach()
    return Linear(weight[:outputs].to(dtype), bias)
