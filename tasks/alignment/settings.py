"""How a drafter is aligned with the large model."""

from __future__ import annotations

from typing import ClassVar

from tasks.settings import setting, settings
from tasks.training.settings import WEIGHT_CHOICES, TrainingSettings

LOSSES = ("sequence", "forward_kl", "reverse_kl", "jensen_shannon", "total_variation")
WRITERS = ("drafter", "interleaved")


@settings
class AlignSettings(TrainingSettings):
    """How the drafter is aligned with the large model: a loss, and where the text comes from that it is measured on.

    The defaults are BiLD's recipe: hard labels, on the large model's own outputs, from the pre-trained start (3.5.1, 7.1.1).
    """

    allowed_choices: ClassVar[tuple[str, ...]] = WEIGHT_CHOICES

    start: str = setting(
        "What alignment begins with: what the small model began with (BiLD, 7.1.1), or the fine-tuned small model.",
        default="pretrained",
        choices=("pretrained", "fine_tuned"),
    )
    loss: str = setting(
        "sequence: cross-entropy of the text (BiLD, 3.5.1); else the divergence of the large model's softmax p and the "
        "drafter's q at each position: forward_kl, KL(p|q); reverse_kl, KL(q|p); jensen_shannon; total_variation, which is 1 "
        "less the acceptance, and hardly moves a drafter that starts at random (DistillSpec, section 4).",
        default="sequence",
        choices=LOSSES,
    )
    beta: float = setting(
        "Of jensen_shannon: the weight of p in the mixture M = beta p + (1 - beta) q, and of KL(p|M) in the loss.",
        default=0.5,
        gt=0,
        lt=1,
    )
    reference: str = setting(
        "Where p comes from: the large model, run beside the drafter (live), or the calibration set (stored; "
        "calibrate.top_logits).",
        default="live",
        choices=("live", "stored"),
    )
    on_policy: float = setting(
        "Share of steps whose text is written anew, while training, in place of taken from the calibration set.",
        default=0.0,
        ge=0,
        le=1,
    )
    writer: str = setting(
        "Who writes it: the drafter alone (DistillSpec, GKD), or the drafter with every token replaced that is not among the "
        "large model's interleave_top_k likeliest (speculative knowledge distillation).",
        default="drafter",
        choices=WRITERS,
    )
    interleave_top_k: int = setting("Of the writer interleaved.", default=25, unit="tokens", ge=1)
    writing_temperature: float = setting("Softmax temperature of the text written; 0 is greedy.", default=1.0, ge=0)
    write_every: int = setting(
        "Of so many steps, those on written text have it written at once, by the drafter as it is at the first of them.",
        default=50,
        unit="steps",
        ge=1,
    )
    replay_rounds: int = setting(
        "Rounds at the end in which the drafter learns from what verification rejects of its drafts (Online Speculative "
        "Decoding, Draft-OPD); 0: none.",
        default=0,
        unit="rounds",
        ge=0,
    )
    replay_steps: int = setting("Steps of a round, out of steps.", default=100, unit="steps", ge=1)
    replay_kept: float = setting(
        "Weight of a position of those texts that was not rejected, beside 1 of one that was.", default=0.1, ge=0, le=1
    )

    @property
    def reads_stored(self) -> bool:
        """Whether it learns from what the calibration set holds of the large model's predictions."""
        return self.loss != "sequence" and self.reference == "stored"

    def validate(self) -> None:
        super().validate()
        if self.has_auxiliary_losses and self.loss != "sequence":
            raise ValueError(
                f"loss is {self.loss}, which reads the last logits alone; with exit_loss, draft_heads or exit_classifier it "
                "must be sequence"
            )
        if self.on_policy and self.reference == "stored":
            raise ValueError("on_policy text has no stored reference; set reference to live, or on_policy to 0")
        if self.on_policy and self.loss == "sequence":
            raise ValueError(
                "on_policy text is the drafter's own, which loss sequence would only teach it again; set loss to a divergence"
            )
        if self.replay_rounds and self.reference == "stored":
            raise ValueError("replay_rounds write text without a stored reference; set reference to live, or them to 0")
        if self.zero_stage == 3 and (self.on_policy or self.replay_rounds):
            what = "on_policy" if self.on_policy else "replay_rounds"
            raise ValueError(
                f"{what} is set, but no process has the whole drafter to write with at zero_stage 3; set it to 2 or less"
            )
        if self.replay_rounds and self.patience:
            raise ValueError(
                f"patience is {self.patience}, which may end training before its last steps, the replay_rounds; set one to 0"
            )
        if self.replay_rounds * self.replay_steps >= self.steps:
            raise ValueError(
                f"replay_rounds of replay_steps come to {self.replay_rounds * self.replay_steps} steps; they must leave some "
                f"of steps, {self.steps}, to the first alignment"
            )
