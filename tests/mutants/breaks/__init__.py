"""The breaks of the heart: rules, turn, kernel, bounds and selection. One that no longer applies is carried over."""

from tests.mutants.breaks import decoding, drafters, laws, runtimes, selection

BREAKS = (*decoding.BREAKS, *drafters.BREAKS, *laws.BREAKS, *runtimes.BREAKS, *selection.BREAKS)
