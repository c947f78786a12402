"""Scores texts: metrics, quality with its intervals, and the statistics beneath. Training needs no other part of evaluation."""
