"""How a kernel is compiled, bound and run."""
