"""Where work runs when there are several processes."""
