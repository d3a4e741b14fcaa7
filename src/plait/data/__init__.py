"""Sequences -> batches."""
