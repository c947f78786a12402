"""The metrics that quality is measured in, by name; apart from `quality`, so that the schema need not import it."""

METRICS = ("bleu", "rouge1", "rouge2", "rougeL", "rougeLsum")
