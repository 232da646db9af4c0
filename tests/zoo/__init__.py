"""Ways to mix examples or to carry them from batch to batch, and ways to train that are sound; see members.py."""
