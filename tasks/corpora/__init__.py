"""Where text comes from: the embedded corpora and the user's files."""
