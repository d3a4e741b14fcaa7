"""The workspace of a call behind its block (program.py): an area for all threads; if the batch is in slabs (slabs.py),
one for the thread of each walk; and for sums over all rows one for each thread.

There is a gap between what two threads write. Without it they slow each other down: a core, and our own code, fetch
lines ahead that the other core is about to write. On two cores of Zen 4 that do not share a cache, a gap of 4 KB gains
up to 2 % of a step, 64 KB up to 13 %, 256 KB 1 to 3 % more.
"""

from .bindings import aligned

GAP, GAPS = 1 << 16, 1 << 20  # bytes between what two threads write, and between all slabs


class Workspace:
    def __init__(self, threads: int, walks: int, slabs: int, size: int) -> None:
        """size: bytes of a number"""
        self.size = size
        self.gap = 0 if threads == 1 else GAP if slabs == 1 else max(GAP, GAPS // slabs)
        self.numbers = [0] * (1 + (walks if slabs > 1 else 0))  # in that of all threads, and in that of each walk
        self.sums = 0  # numbers for each thread
        self.reserved: dict[int, tuple[int, int]] = {}  # by word: in which area, after how many numbers

    def reserve(self, word: int, numbers: int, area: int = 0) -> None:
        """Memory for the time of the call; the word will be its address."""
        self.reserved[word] = area, self.numbers[area]
        self.numbers[area] += aligned(numbers)

    def again(self, word: int, other: int) -> None:
        """The memory that was reserved for another word."""
        self.reserved[word] = self.reserved[other]

    def reserve_sums(self, numbers: int) -> None:
        """For each thread: the sum that needs most decides."""
        self.sums = max(self.sums, aligned(numbers))

    # --- in bytes
    @property
    def of_walk(self) -> int:
        """From the area of a walk to that of the next."""
        return self.with_gap(max(self.numbers[1:], default=0))

    @property
    def of_thread(self) -> int:
        """From the area of a thread to that of the next."""
        return self.with_gap(self.sums)

    def with_gap(self, numbers: int) -> int:
        return numbers * self.size + self.gap if numbers else 0

    def lay_out(self, head: int) -> tuple[list[tuple[int, int]], int]:
        """Behind so many bytes -> for each word where its memory begins; where the areas of the threads begin."""
        has_more = self.of_walk or self.of_thread
        walks_at = head + self.numbers[0] * self.size + (self.gap if has_more else 0)
        found = []
        for word, (area, before) in self.reserved.items():
            start = walks_at + (area - 1) * self.of_walk if area else head
            found.append((word, start + before * self.size))
        return found, walks_at + (len(self.numbers) - 1) * self.of_walk
