"""One loop for all tasks, and what it writes."""
