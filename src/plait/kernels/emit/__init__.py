"""Machine code for one cell and one kind of number, emitted as LLVM instructions."""
