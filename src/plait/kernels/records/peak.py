"""One tile that is computed many times (peak.py). It stands in the place of a launch."""

# word 0 is written by plait_start
TILE, KEY = 1, 2  # address of the leaf, and which of its tiles
A, ROW, STEP, DEPTH = 3, 4, 5, 6  # address, bytes from row to row and from k to k, terms of a sum
PANEL = 7  # address
PIECES, EACH = 8, 9  # pieces of work, and how often a piece computes the tile
TAKEN = 16  # ticket: pieces that were taken
PEAK_SIZE = 24
