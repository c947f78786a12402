"""`python -m tasks.bench orchestration`: what DVC, Prefect, MLflow, the queue and the fan-out cost beside the work itself.

command.py   the command and its targets      toy.py     repositories of stages that cost nothing, and commands in them
stages.py    DVC and Prefect, by the stage    record.py  MLflow, by the point of a sweep
fan_out.py   two processes against one        queue.py   experiments whose runner is killed
"""
