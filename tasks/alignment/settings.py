"""Settings of the calibration set and of alignment.

They are two classes, since a change of alignment's settings must not generate the calibration set again.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tasks.decoding.method import SamplingSettings
from tasks.settings import SEEDS, setting, settings
from tasks.training.settings import WEIGHT_CHOICES, TrainingSettings

DIVERGENCES = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation")
"""Losses that compare both models' predictions."""
LOSSES = ("sequence", *DIVERGENCES)


@settings
class CalibrateSettings:
    """How the large model labels the training inputs; by default with its greedy output for each, as in BiLD (3.5.1)."""

    batch_size: int = setting(
        "Inputs decoded side by side; 0: as many as fit the device, at most 128.", default=128, unit="examples", ge=0
    )
    shard: int = setting("Inputs between two saves; a killed run repeats at most these.", default=2000, unit="inputs", ge=1)
    fraction: float = setting("Fraction of the training inputs to label, drawn by seed.", default=1.0, gt=0, le=1)
    texts: str = setting(
        "Which texts the large model labels for each input: its own outputs (BiLD, 3.5.1), or the corpus' references, along "
        "which align.loss then compares both models' predictions. References suit the metric perplexity.",
        default="outputs",
        choices=("outputs", "references"),
    )
    sampling: SamplingSettings = setting("How outputs are generated: greedy or sampled.", default_factory=SamplingSettings)
    samples: int = setting("Outputs drawn for each input; duplicates are dropped.", default=1, unit="outputs", ge=1, le=100)
    seed: int = setting("Seed of the fraction and of sampled outputs.", default=0, ge=0, le=SEEDS)
    max_repeats: int = setting(
        "An output that repeats one token, or a group of up to four, more often than this in a row is degenerate and dropped; "
        "0 drops none for repetition.",
        default=6,
        unit="times",
        ge=0,
    )
    keep_over_long: bool = setting(
        "Keep outputs that reach text.max_target_tokens without an end token, as of a chat model that continues a text. A "
        "drafter learns them up to there, which takes a loss that compares predictions: align.loss other than sequence.",
        default=False,
    )
    top_logits: int = setting(
        "Number of most likely tokens whose probabilities are stored at each target position, for align.reference stored; 0 "
        "stores none.",
        default=0,
        unit="tokens",
        ge=0,
    )

    def validate(self) -> None:
        if self.texts == "references" and (self.samples > 1 or not self.sampling.greedy):
            raise ValueError("texts is references, which are not generated; leave out sampling and samples")
        if self.samples > 1 and self.sampling.greedy:
            raise ValueError(f"samples is {self.samples}, but sampling is greedy, with one output; set sampling.temperature")


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
        "sequence: cross-entropy of the text (BiLD, 3.5.1). Otherwise a divergence between the large model's softmax p and the "
        "drafter's q at each position (DistillSpec, section 4): forward_kl, KL(p|q); reverse_kl, KL(q|p); jensen_shannon; "
        "total_variation, which is 1 minus the acceptance rate and hardly moves a drafter that starts at random.",
        default="sequence",
        choices=LOSSES,
    )
    beta: float = setting(
        "jensen_shannon only: weight of p in the mixture M = beta p + (1 - beta) q, and of KL(p|M) in the loss.",
        default=0.5,
        gt=0,
        lt=1,
    )
    reference: str = setting(
        "Source of p: the large model, run along with the drafter (live), or the predictions stored in the calibration set "
        "(stored; needs calibrate.top_logits).",
        default="live",
        choices=("live", "stored"),
    )

    unaligned: str = setting(
        "The unaligned drafter: trained on references, otherwise as the aligned one, as its control; or the small model as it "
        "is, where a paper decodes with published models (a comparison that holds no training equal).",
        default="trained",
        choices=("trained", "as_it_is"),
    )

    @property
    def reads_stored(self) -> bool:
        """Whether the loss reads the predictions stored in the calibration set."""
        return self.loss != "sequence" and self.reference == "stored"

    @property
    def control(self) -> AlignSettings:
        """The settings of the control: the same training from the same start, by cross-entropy of the references; or none."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(TrainingSettings)}
        if self.unaligned == "as_it_is":
            same["steps"] = 0
        return AlignSettings(**same, start=self.start, draft_vocabulary=self.draft_vocabulary, unaligned=self.unaligned)

    def validate(self) -> None:
        super().validate()
        if self.steps == 0 and self.unaligned == "trained":
            raise ValueError("steps is 0, so that no drafter learns anything; set it to at least 1")
        if self.has_auxiliary_losses and self.unaligned == "as_it_is":
            fix = "set unaligned to trained"
            raise ValueError(f"unaligned is as_it_is, but exit_loss, draft_heads and exit_classifier need training; {fix}")
        if self.has_auxiliary_losses and self.draft_vocabulary:
            raise ValueError(
                f"draft_vocabulary is {self.draft_vocabulary}, but exit_loss, draft_heads and exit_classifier predict all "
                "tokens; leave out one of them"
            )
        if self.has_auxiliary_losses and self.loss != "sequence":
            fix = "with exit_loss, draft_heads or exit_classifier it must be sequence"
            raise ValueError(f"loss is {self.loss}, which reads the last logits alone; {fix}")
