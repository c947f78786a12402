"""Settings of labelling.

They are separate from the settings of alignment, so that a change of those does not generate the calibration set again.
"""

from __future__ import annotations

from tasks.decoding.method import SamplingSettings
from tasks.settings import setting, settings


@settings
class CalibrateSettings:
    """How the large model labels the training inputs; by default with its greedy output for each, as in BiLD (3.5.1)."""

    batch_size: int = setting("Inputs decoded side by side.", default=128, unit="examples", ge=1)
    shard: int = setting("Inputs between two saves; a killed run repeats at most these.", default=2000, unit="inputs", ge=1)
    fraction: float = setting("Fraction of the training inputs to label, drawn by seed.", default=1.0, gt=0, le=1)
    texts: str = setting(
        "Which texts the large model labels for each input: its own outputs (BiLD, 3.5.1), or the corpus' references, along "
        "which align.loss then compares both models' predictions. References suit the metric perplexity.",
        default="outputs",
        choices=("outputs", "references"),
    )
    sampling: SamplingSettings = setting("How outputs are generated: greedy or sampled.", default_factory=SamplingSettings)
    samples: int = setting("Outputs drawn for each training input; duplicates are dropped.", default=1, unit="outputs", ge=1)
    seed: int = setting("Seed of the fraction and of sampled outputs.", default=0, ge=0)
    max_repeats: int = setting(
        "An output that repeats one token, or a group of up to four, more often than this in a row is degenerate and dropped; "
        "0 drops none for repetition.",
        default=6,
        unit="times",
        ge=0,
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
            raise ValueError(
                f"samples is {self.samples}, but sampling is greedy, which gives one output; set sampling.temperature"
            )
