"""Decoding beside the programs that people use for it, on one decoder-only checkpoint."""
