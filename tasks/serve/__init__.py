"""An HTTP server for a pair: completions as engines offer them, batched, with drafting only where it pays.

__main__.py   the command          api.py      requests and answers, routes, limits, streams
scheduler.py  the queue, batches and metrics   pacing.py   which way of decoding is the fastest here
"""
