"""What `plait check` does: whatever computes is compared with something slower. See rungs.py."""
