"""Expressions of the exporter's symbols as text over names of dims."""

import sympy
from sympy.printing.precedence import PRECEDENCE
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PowByNatural, PythonMod
from torch.utils._sympy.printers import PythonPrinter


class OutsideGrammar(Exception):
    """An expression that a printer has no words for."""


_TIGHT = PRECEDENCE["Atom"] - 0.5  # of operands: only names and numbers go without parentheses


class FormulaPrinter(PythonPrinter):
    """The grammar of SizeFormula, which reads what this prints."""

    def __init__(self, names):
        super().__init__()
        self._names = names

    def _print_Symbol(self, expr):
        return self._names[expr]

    def _print_FloorDiv(self, expr):
        dividend, divisor = (self.parenthesize(part, _TIGHT) for part in expr.args)
        return f"{dividend}//{divisor}"

    def _print_ModularIndexing(self, expr):
        dividend, divisor, modulus = (self.parenthesize(part, _TIGHT) for part in expr.args)
        return f"(({dividend}//{divisor}) % {modulus})"

    def _print_ToFloat(self, expr):
        return f"float({self._print(expr.args[0])})"

    def _print_OpaqueUnaryFn_sqrt(self, expr):
        return f"math.sqrt({self._print(expr.args[0])})"

    def _print_Function(self, expr):
        raise OutsideGrammar


class GrammarPrinter:
    """The grammar of parse_dim: + - * // % min max over names and integers."""

    def __init__(self, names):
        self._names = names

    def print(self, expression):
        if expression.is_Integer:
            return str(int(expression)) if int(expression) >= 0 else f"(0 - {-int(expression)})"
        if expression.is_Symbol:
            return self._names[expression]
        parts = expression.args
        if expression.is_Add:
            return "(" + " + ".join(map(self.print, parts)) + ")"
        if expression.is_Mul:
            return "(" + "*".join(map(self.print, parts)) + ")"
        if (expression.is_Pow or isinstance(expression, PowByNatural)) and parts[1].is_Integer and int(parts[1]) > 0:
            return "(" + "*".join([self.print(parts[0])] * int(parts[1])) + ")"
        if isinstance(expression, FloorDiv | CleanDiv):
            return f"({self.print(parts[0])}//{self.print(parts[1])})"  # with a space, a comment begins
        if isinstance(expression, Mod | PythonMod):
            return f"({self.print(parts[0])} % {self.print(parts[1])})"
        if isinstance(expression, Min | Max | sympy.Min | sympy.Max):
            function = "min" if isinstance(expression, Min | sympy.Min) else "max"
            text = self.print(parts[0])
            for part in parts[1:]:
                text = f"{function}({text}, {self.print(part)})"
            return text
        raise OutsideGrammar
