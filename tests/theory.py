"""Numbers that the papers print for their theorems."""

THEORY = (
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
)
"""SD, Table 1, c = ĉ = 0: α, γ, factor in operations (Theorem 3.11), speed-up (Theorem 3.8)."""
