"""The user's own files: aligned plain text, JSON Lines, CSV, TSV and Parquet, each of them also gzip-compressed."""
