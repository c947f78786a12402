"""Describes an alignment for the model card, with references."""

from __future__ import annotations

from tasks.alignment.settings import AlignSettings

_LOSSES = {
    "sequence": "It learned what the large model writes, by cross-entropy (BiLD: Kim et al., 2023, section 3.5.1)",
    "forward_kl": "It learned what the large model predicts, by KL(p|q) at each position (DistillSpec: Zhou et al., 2023)",
    "reverse_kl": "It learned what the large model predicts, by KL(q|p) at each position (DistillSpec: Zhou et al., 2023)",
    "jensen_shannon": "It learned what the large model predicts, by the Jensen-Shannon divergence of weight {beta:g} at each "
    "position (GKD: Agarwal et al., 2024; DistillSpec: Zhou et al., 2023)",
    "total_variation": "It learned what the large model predicts, by the total variation distance at each position, which is 1 "
    "less the acceptance (DistillSpec: Zhou et al., 2023)",
}
_WRITERS = {
    "drafter": "of the drafter's own (on-policy; GKD: Agarwal et al., 2024)",
    "interleaved": "that both models wrote in turns (speculative knowledge distillation: Xu et al., 2024)",
}


def describe_method(settings: AlignSettings) -> str:
    """Return one sentence on loss and training text."""
    parts = [_LOSSES[settings.loss].format(beta=settings.beta)]
    if settings.on_policy:
        parts.append(f"{settings.on_policy:.0%} of its steps were on text {_WRITERS[settings.writer]}")
    if settings.replay_rounds:
        parts.append(
            f"at the end came {settings.replay_rounds} rounds of {settings.replay_steps} steps on what verification rejected "
            "(Online Speculative Decoding: Liu et al., 2023)"
        )
    return "; ".join(parts) + "."
