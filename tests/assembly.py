"""The generated code compiled for any processor, whatever this one is, and its inner loops."""

import re
from typing import NamedTuple

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
FMA = re.compile(r"fmla|vfmadd\w+")
STACK = re.compile(r"\[sp\b|%rsp\b|%rbp\)")
MEMORY = re.compile(r"\(%|\[x")
VECTOR = re.compile(r"\b[vqsd]\d+\b|%[xyz]mm\d+")


class Loop(NamedTuple):
    """A loop without another inside: its instructions."""

    text: list[str]

    @property
    def fma(self) -> list[str]:
        return [line for line in self.text if FMA.match(line)]

    @property
    def sums(self) -> set[str]:
        """The registers that the products are added to."""
        return {re.split(r"[\s,]+", line)[1 if line.startswith("fmla") else -1] for line in self.fma}

    @property
    def loads(self) -> int:
        """How often it reads vectors, or a number into all lanes of one, from memory other than the stack."""
        return sum(bool(MEMORY.search(line) and VECTOR.search(line) and not STACK.search(line)) for line in self.text)

    @property
    def spills(self) -> list[str]:
        """Vectors that are stored on the stack, or read from there."""
        return [line for line in self.text if STACK.search(line) and VECTOR.search(line)]


def assembly(module: ir.Module, triple: str, cpu: str, features: str = "") -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this llvmlite cannot compile for {triple.partition('-')[0]}")
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic")
    module.triple, module.data_layout = triple, str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    text: str = machine.emit_assembly(parsed)
    return text


def instructions(text: str) -> list[str]:
    lines = (re.split(r"//|\s#", line)[0].strip() for line in text.splitlines())
    return [line for line in lines if line and (line.endswith(":") or not line.startswith((".", "#")))]


def calls(text: str) -> list[str]:
    return [line for line in instructions(text) if re.match(r"(bl|blr|callq?)\s", line)]


def loops(text: str) -> list[Loop]:
    """Those of one basic block, which ends with a jump to its own label."""
    found, label, block = [], None, list[str]()
    for line in instructions(text):
        if line.endswith(":"):
            label, block = line[:-1], []
            continue
        block.append(line)
        if label and line.split()[-1] == label:
            found.append(Loop(block))
            label, block = None, []
    return found
