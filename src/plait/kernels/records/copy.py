"""Rows that are copied to another matrix, before the walks or after all else. All its words come with each call."""

TO, FROM, INDEX = 0, 1, 2  # addresses; INDEX: for each row of TO, the number of the row of FROM, or -1: it is zero
ROWS, ROW = 3, 4  # how many rows of TO, and bytes of each
GIVEN = 5  # the number of words that come with each call
TAKEN, DONE = 8, 9  # tickets: pieces of rows that were taken, and that are done
COPY_SIZE = 16
