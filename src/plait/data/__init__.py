"""Sequences -> batches."""

from . import buckets
from .sampler import Sampler

__all__ = ["Sampler", "buckets"]
