"""Settings of beam search, alone and with a draft (Leviathan et al., 2023, appendix A.4)."""

from __future__ import annotations

from tasks.settings import setting, settings


@settings
class BeamSettings:
    """Beam search with the large model alone."""

    beams: int = setting("w: number of beams.", default=4, ge=1, le=64)


@settings
class SpeculativeBeamSettings(BeamSettings):
    """Speculative beam search: identical to beam search with the large model (SD, A.4)."""

    draft_beams: int = setting("u: beams that the small model drafts, at least `beams`.", default=6, ge=1, le=64)
    draft_length: int = setting("Tokens drafted before each run of the large model.", default=3, unit="tokens", ge=1, le=64)

    def validate(self) -> None:
        if self.draft_beams < self.beams:
            raise ValueError(f"draft_beams is {self.draft_beams}; it must be at least beams, {self.beams}")


METHODS: dict[str, type] = {
    "beam_large": BeamSettings,
    "speculative_beam": SpeculativeBeamSettings,
}
"""The settings of each method of this family, by the method's name."""
