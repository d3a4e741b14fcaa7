"""The few things that a kernel does beside arithmetic: words in memory, tickets, barriers, the floating-point mode."""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, typeof_impl

from ..emit.target import I32, I64, IS_X86, VOID, i64
from ..emit.vectors import intrinsic as call_intrinsic
from ..emit.vectors import prefetch as emit_prefetch
from ..records import Launch, RecordType

Int = types.intp


@typeof_impl.register(RecordType)
def _(record, _context):
    """To numba a record is like a module: its words are constants."""
    return types.Module(record)


SPINS = 2000  # turns of a waiting loop before it yields the core: some microseconds
BETWEEN = 511  # turns from then on before it yields again: each time is a call of the system


def compiled(arguments: int, result: Any = types.void) -> Any:
    """Compiles a function of n integers once. Literals do not cause a second version. Not callable from Python."""
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(result(*[Int] * arguments), **options)


def word_at(build: ir.IRBuilder, address: ir.Value, index: ir.Value) -> ir.Value:
    return build.gep(build.inttoptr(address, I64.as_pointer()), [index])


def emitted(arguments: int, emit: Any, *, returns: bool = False) -> Any:
    """A function of n integers for compiled code, whose instructions `emit(build, *arguments)` emits."""
    names = ", ".join(f"a{k}" for k in range(arguments))
    signature = (Int if returns else types.void)(*[Int] * arguments)

    def generate(context, build, _signature, args):
        value = emit(build, *args)
        return value if returns else context.get_dummy_value()

    scope = {"result": (signature, generate)}
    exec(f"def run(_typing{', ' if names else ''}{names}): return result", scope)
    return intrinsic(scope["run"])


def _calling(arguments: int, kind: ir.Type, returns: bool) -> Any:
    def emit(build, address, *args):
        function = build.inttoptr(address, ir.FunctionType(kind, [I64] * arguments).as_pointer())
        value = build.call(function, args)
        return build.sext(value, I64) if returns else None

    return emitted(arguments + 1, emit, returns=returns)


get = emitted(2, lambda build, *at: build.load(word_at(build, *at)), returns=True)
put = emitted(3, lambda build, address, index, value: build.store(value, word_at(build, address, index)))
# ticket: adds 1 to a counter -> its value before, which no other thread gets. look: the value of a counter
ticket = emitted(2, lambda build, *at: build.atomic_rmw("add", word_at(build, *at), i64(1), "seq_cst"), returns=True)
look = emitted(2, lambda build, *at: build.load_atomic(word_at(build, *at), "acquire", 8), returns=True)
copy = emitted(
    3, lambda build, to, origin, size: cgutils.raw_memcpy(build, _byte(build, to), _byte(build, origin), size, 1)
)
zero = emitted(2, lambda build, to, size: cgutils.memset(build, _byte(build, to), size, 0))
call0 = _calling(0, I32, True)  # int f(void)
call1, call2, call4, call6, call9 = (_calling(count, VOID, False) for count in (1, 2, 4, 6, 9))


prefetch = emitted(1, lambda build, address: emit_prefetch(build, address, to_write=False, near=2))


def _byte(build: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return build.inttoptr(address, ir.IntType(8).as_pointer())


def memory(words: int) -> Any:
    """A function () -> the address of n words, which are there until the calling function returns."""

    def emit(build):
        with build.goto_entry_block():
            place = build.alloca(ir.ArrayType(I64, words))
            place.align = 64
        return build.ptrtoint(place, I64)

    return emitted(0, emit, returns=True)


pause = emitted(0, lambda build: call_intrinsic(build, "llvm.x86.sse2.pause", VOID) if IS_X86 else None)
FLUSH = 0x8040  # x86: results (0x8000) and arguments (0x0040) that are denormal count as zero


def _flush(build: ir.IRBuilder) -> ir.Value:
    if not IS_X86:
        return i64(0)
    mode = build.alloca(I32)
    call_intrinsic(build, "llvm.x86.sse.stmxcsr", VOID, mode)
    before = build.load(mode)
    build.store(build.or_(before, ir.Constant(I32, FLUSH)), mode)
    call_intrinsic(build, "llvm.x86.sse.ldmxcsr", VOID, mode)
    return build.zext(before, I64)


def _restore(build: ir.IRBuilder, before: ir.Value) -> None:
    if IS_X86:
        mode = build.alloca(I32)
        build.store(build.trunc(before, I32), mode)
        call_intrinsic(build, "llvm.x86.sse.ldmxcsr", VOID, mode)


flush_denormals = emitted(0, _flush, returns=True)  # -> the mode before. It changes nothing if this is not x86.
restore_denormals = emitted(1, _restore)


@compiled(4)
def wait(launch, address, index, count):
    """Waits until the counter reaches a value: spins for a short time, then yields the core now and then."""
    spins = 0
    while look(address, index) < count:
        spins += 1
        if spins < SPINS or spins & BETWEEN or get(launch, Launch.ALONE):
            pause()
        else:
            call0(get(launch, Launch.YIELD))


@compiled(3)
def meet(launch, team, count):
    """Waits until all threads of the team are here. It is their meeting number `count`, from 1 on."""
    ticket(launch, Launch.ARRIVED)
    wait(launch, launch, Launch.ARRIVED, count * team)
