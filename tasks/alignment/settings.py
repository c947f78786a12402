"""Alignment settings."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tasks.settings import setting, settings
from tasks.training.settings import WEIGHT_CHOICES, TrainingSettings

OF_TEXT = ("sequence", "gatekeeper")
"""Losses that read the text alone."""
DIVERGENCES = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation", "negative_log_acceptance")
"""Losses that compare both models' predictions."""
LOSSES = (*OF_TEXT, *DIVERGENCES)
POSITION_WEIGHTS = ("none", "decay", "acceptance")
WRITERS = ("drafter", "interleaved")


@settings
class AlignSettings(TrainingSettings):
    """How the drafter is aligned with the large model: the loss, and the text that it is computed on.

    The defaults are BiLD's recipe: hard labels, the large model's own outputs, the pre-trained start (3.5.1, 7.1.1).
    """

    allowed_choices: ClassVar[tuple[str, ...]] = WEIGHT_CHOICES

    start: str = setting(
        "Where alignment starts: from the small model's own start (BiLD, 7.1.1), or from the fine-tuned small model.",
        default="pretrained",
        choices=("pretrained", "fine_tuned"),
    )
    draft_vocabulary: int = setting(
        "Tokens that the drafters of both arms predict: special ones, and those that the large model writes most in the "
        "calibration set. They read any token; others have no probability and are left out of the loss. 0: all.",
        default=0,
        unit="tokens",
        ge=0,
    )
    loss: str = setting(
        "sequence: cross-entropy of the text (BiLD, 3.5.1). gatekeeper: that where the drafter's likeliest token is the text's "
        "and KL(q|uniform) elsewhere, so that its confidence says where to defer (Rabanser et al., 2025). Otherwise a "
        "divergence between the large model's softmax p and the drafter's q at each position: forward_kl, KL(p|q); reverse_kl, "
        "KL(q|p); jensen_shannon; total_variation, which is 1 minus the acceptance rate and hardly moves a drafter that starts "
        "at random (DistillSpec, section 4); negative_log_acceptance, -log Σ min(p, q), whose gradient does not vanish there "
        "(LK losses: Samarin et al., 2026).",
        default="sequence",
        choices=LOSSES,
    )
    beta: float = setting(
        "jensen_shannon only: weight of p in the mixture M = beta p + (1 - beta) q, and of KL(p|M) in the loss.",
        default=0.5,
        gt=0,
        lt=1,
    )
    sure_weight: float = setting(
        "gatekeeper only: weight α of the cross-entropy where the drafter is right; 1 - α weighs KL(q|uniform) where it is "
        "not. A small α defers more reliably, a large one drafts better (Rabanser et al., 2025).",
        default=0.5,
        gt=0,
        lt=1,
    )
    kl_until: float = setting(
        "Share of the steps over which KL(p|q) turns into the divergence D that `loss` names: λ KL(p|q) + (1 - λ) D, with λ "
        "falling linearly from 1 at the first step to 0 at this share of the steps (1: at the last step). 0: D throughout. LK "
        "losses (Samarin et al., 2026) let λ follow the acceptance instead.",
        default=0.0,
        ge=0,
        le=1,
    )
    label_weight: float = setting(
        "Weight w of the text's cross-entropy beside a divergence D: the loss is (1 - w) D - w log q(y) at each position, with "
        "y the text's token (distillation with soft and hard targets: Hinton et al., 2015, section 2).",
        default=0.0,
        ge=0,
        lt=1,
    )
    position_weights: str = setting(
        "Weights of positions in a draft window, for any loss; training texts are cut into windows of position_window tokens. "
        "decay: position_decay^j at the j-th position of a window, from 0, as heads are weighted (Medusa-1, equation 1). "
        "acceptance: the probability that all earlier tokens of the window are accepted, Π Σ min(p, q), where loss sequence "
        "takes the text's token for p.",
        default="none",
        choices=POSITION_WEIGHTS,
    )
    position_window: int = setting("position_weights only: draft length γ.", default=5, unit="tokens", ge=2, le=64)
    position_decay: float = setting(
        "position_weights decay only: factor from one position to the next.", default=0.8, gt=0, lt=1
    )
    reference: str = setting(
        "Source of p: the large model, run along with the drafter (live), or the predictions stored in the calibration set "
        "(stored; needs calibrate.top_logits).",
        default="live",
        choices=("live", "stored"),
    )
    on_policy: float = setting(
        "Fraction of steps on text generated during training instead of text from the calibration set.",
        default=0.0,
        ge=0,
        le=1,
    )
    writer: str = setting(
        "How on-policy text is generated: by the drafter alone (DistillSpec, GKD), or by the drafter with every token replaced "
        "that is not among the large model's interleave_top_k most likely (speculative knowledge distillation).",
        default="drafter",
        choices=WRITERS,
    )
    interleave_top_k: int = setting("Writer interleaved only: number of acceptable tokens.", default=25, unit="tokens", ge=1)
    writing_temperature: float = setting("Softmax temperature of generated text; 0 is greedy.", default=1.0, ge=0)
    write_every: int = setting(
        "Steps between refreshes of the rollout buffer. All on-policy steps in a window use text generated by the drafter at "
        "the window's first step.",
        default=50,
        unit="steps",
        ge=1,
    )
    replay_rounds: int = setting(
        "Rounds at the end in which the drafter learns from its rejected draft tokens (Online Speculative Decoding, "
        "Draft-OPD); 0: none.",
        default=0,
        unit="rounds",
        ge=0,
    )
    replay_steps: int = setting("Steps per round; they count towards steps.", default=100, unit="steps", ge=1)
    replay_kept: float = setting(
        "Weight of positions that were not rejected; rejected positions weigh 1.", default=0.1, ge=0, le=1
    )

    @property
    def reads_stored(self) -> bool:
        """Whether the loss reads the predictions stored in the calibration set."""
        return self.loss in DIVERGENCES and self.reference == "stored"

    @property
    def reads_progress(self) -> bool:
        """Whether the loss differs between training and held-out texts, or over training."""
        return self.kl_until > 0 or self.position_weights == "acceptance"

    @property
    def control(self) -> AlignSettings:
        """The settings of the control: the same training from the same start, by cross-entropy of the references."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(TrainingSettings)}
        return AlignSettings(**same, start=self.start, draft_vocabulary=self.draft_vocabulary)

    def validate(self) -> None:
        super().validate()
        if self.steps == 0:
            raise ValueError("steps is 0, so that no drafter learns anything; set it to at least 1")
        self._validate_auxiliary_losses()
        self._validate_loss()
        self._validate_rollouts()

    def _validate_auxiliary_losses(self) -> None:
        if not self.has_auxiliary_losses:
            return
        if self.draft_vocabulary:
            raise ValueError(
                f"draft_vocabulary is {self.draft_vocabulary}, but exit_loss, draft_heads and exit_classifier predict all "
                "tokens; leave out one of them"
            )
        if self.loss != "sequence":
            raise ValueError(
                f"loss is {self.loss}, which reads the last logits alone; with exit_loss, draft_heads or exit_classifier it "
                "must be sequence"
            )
        if self.position_weights != "none":
            raise ValueError(
                f"position_weights is {self.position_weights}, which weighs the loss of the last logits alone; with exit_loss, "
                "draft_heads or exit_classifier it must be none"
            )

    def _validate_loss(self) -> None:
        if self.kl_until and self.loss in (*OF_TEXT, "forward_kl"):
            what = "has no divergence" if self.loss in OF_TEXT else "is KL(p|q) itself"
            raise ValueError(
                f"kl_until is {self.kl_until}, but loss {self.loss} {what}; set loss to another divergence, for example "
                "total_variation"
            )
        if self.label_weight and self.loss in OF_TEXT:
            raise ValueError(
                f"label_weight is {self.label_weight}, but loss {self.loss} learns from the text alone; set loss to a "
                "divergence"
            )
        if self.position_weights == "acceptance" and self.loss == "gatekeeper":
            raise ValueError(
                "position_weights is acceptance, but loss gatekeeper wants a drafter that is not accepted to be unsure; set "
                "position_weights to decay or none"
            )

    def _validate_rollouts(self) -> None:
        if self.label_weight and self.on_policy:
            raise ValueError(
                f"label_weight is {self.label_weight}, which would teach the drafter its own on_policy text again; set one to 0"
            )
        if self.on_policy and self.reference == "stored":
            raise ValueError("on_policy text has no stored reference; set reference to live, or on_policy to 0")
        if self.on_policy and self.loss in OF_TEXT:
            raise ValueError(
                f"on_policy text is the drafter's own, which loss {self.loss} would only teach it again; set loss to a "
                "divergence"
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
