"""What the CUDA engine is made of: gpu (the device), form and block_text (a kernel's text), blocks (its launch)."""
