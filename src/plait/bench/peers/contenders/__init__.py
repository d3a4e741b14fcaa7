"""One training step, written once for each library that `plait bench peers` compares, and the process that runs it.

A process is started by the path of worker.py, so that it also works where plait and torch are not installed. So these
modules import each other and their own library, and of plait only what they measure.
"""
