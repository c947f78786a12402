"""Sources of text: the embedded corpora and the user's files."""
