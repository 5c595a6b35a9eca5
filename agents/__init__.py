"""Learned policies: networks, training, checkpoints, and acting with what was trained."""
