"""Object files: machine code from numba's functions and LLVM's modules."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ..emit.target import I64, Form, Target


def shared() -> bytes:
    """The loops that all cells share."""
    from ..loops import lengths, products, walk  # numba compiles their functions when they are imported

    return callable_from_c(
        "plait_shared",
        plait_rows=products.multiply_rows,
        plait_multiply=products.multiply,
        plait_run=walk.run,
        plait_start=walk.start,
        plait_lay_out=lengths.lay_out,
    )


def callable_from_c(title: str, **functions: Any) -> bytes:
    """numba's functions, by other names."""
    module, target, libraries = ir.Module(title), cpu_target.target_context, []
    for name, function in functions.items():
        ((arguments, result),) = function.overloads.items()
        entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * len(arguments)), name)
        build = ir.IRBuilder(entry.append_basic_block())
        callee = target.declare_function(module, result.fndesc)
        target.call_conv.call_function(build, callee, types.void, arguments, entry.args)
        build.ret_void()
        libraries.append(result.library)
    return object_file(module, *libraries)


def products(target: Target) -> bytes:
    from ..emit.functions import products as module

    return object_file(module(target))


def functions(form: Form) -> bytes:
    from ..emit.functions import functions as module

    return object_file(module(form))


def object_file(module: ir.Module, *libraries: Any) -> bytes:
    """Optimised for this processor. Nothing in it refers to Python."""
    with global_compiler_lock:
        library = cpu_target.target_context.codegen().create_library(module.name)
        library.enable_object_caching()
        for other in libraries:
            library.add_linking_library(other)
        library.add_ir_module(module)
        library.finalize()
        code: bytes = library._get_compiled_object()
    return code
