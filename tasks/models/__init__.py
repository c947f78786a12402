"""Builds, loads and saves models and tokenizers, and checks that two models form a pair."""
