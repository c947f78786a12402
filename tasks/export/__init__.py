"""Writes a pair in the form that another engine opens, and says what that form cannot carry."""
