"""Runtimes: models behind the `Decoder` interface."""
