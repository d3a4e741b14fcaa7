"""Whether numba-cuda can run kernels here, on a device or in its simulator; if not, what is missing."""

import os
from functools import cache
from importlib.util import find_spec

from ...kernels.cuda.gpu import why_too_old

INSTALL = "pip install 'plait[cuda]' (drivers before 580: 'plait[cuda12]')"


def simulated() -> bool:
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@cache
def why_no_numba() -> str | None:
    """None if it can, else a sentence."""
    if find_spec("numba_cuda") is None:
        return f"numba-cuda is not installed: {INSTALL}."
    if simulated():
        return None
    from numba import cuda
    from numba.cuda.cudadrv import nvvm

    error = str(cuda.cuda_error() or "")
    if "NO_DEVICE" in error or (not error and not len(cuda.gpus)):
        return "the CUDA driver sees no device."
    if "cannot be found" in error:
        return "no CUDA driver was found: install NVIDIA's, or set NUMBA_ENABLE_CUDASIM=1 to try without a device."
    if error:
        return f"the CUDA driver cannot be used ({' '.join(error.split())})."
    if not nvvm.is_available():
        return f"CUDA's compiler (NVVM) is missing: {INSTALL}."
    return why_too_old(cuda.get_current_device().compute_capability)
