"""Policies of systems that people run, adapted to roots that choose cells; one a module."""
