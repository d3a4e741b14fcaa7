"""One file per question, and the report."""
