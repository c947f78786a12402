"""Drafters: a model, tables, copies from the context, random tokens, the first layers, heads."""
