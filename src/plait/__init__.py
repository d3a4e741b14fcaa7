"""plait trains recurrent networks in parallel along every axis they have, inside PyTorch."""

from . import cells, engines
from .errors import PlaitError
from .layers import GRU, LSTM, RNN, ImplicitGRU, accelerate, restore

__version__ = "0.1.0"

__all__ = ["GRU", "LSTM", "RNN", "ImplicitGRU", "PlaitError", "accelerate", "cells", "engines", "restore"]
