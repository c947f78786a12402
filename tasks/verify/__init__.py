"""Checks a pair's certificate in another engine: does that engine accept as many drafted tokens as this project's runtime?"""
