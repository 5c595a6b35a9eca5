"""One module per question: a sweep, its table, its figure and what it finds.

`python -m experiments` lists them; docs/experiments.md says how to add one. Every module that lies
here is an experiment (see `runner.discovery`); what they share is in `experiments.runner`.
"""
