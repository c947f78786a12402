"""What proposes tokens: a model, tables, copies from the context, random tokens, first layers, heads."""
