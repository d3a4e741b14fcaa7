"""The loops that all cells share. numba compiles them once."""
