"""`python -m tasks.bench serving`: a served pair beside other servers of the same model, under the same load."""
