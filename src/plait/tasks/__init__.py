"""Data + model + loss + metric + picture."""
