"""An HTTP server for a pair: completions as engines offer them, batched, with drafting only where it pays.

__main__.py   the command          app.py        routes, limits, streams     api.py    requests and answers as JSON
scheduler.py  the queue, batches   executing.py  runs a batch in one way     pacing.py which way is fastest here
job.py        one text          metrics.py    Prometheus
"""
