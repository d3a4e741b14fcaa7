"""Sequences -> batches.

Sampler  batches of sequences of about the same length, in a seeded random order; a batch sampler for any DataLoader
buckets  which lengths go together: none, static, greedy, optimal
"""

from . import buckets
from .sampler import Sampler

__all__ = ["Sampler", "buckets"]
