"""The report of a task: its summary, tables, figures, recommendation, page, and the pair that it recommends."""
