"""A report's tables as LaTeX: booktabs, best in bold, ± where there are several seeds."""

from __future__ import annotations

from wildtta.report.document import Document
from wildtta.report.table import Number, Table, written

_MATHS = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\varepsilon", "ζ": r"\zeta", "η": r"\eta",
    "θ": r"\theta", "κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "ν": r"\nu", "π": r"\pi", "ρ": r"\rho",
    "σ": r"\sigma", "τ": r"\tau", "φ": r"\varphi", "χ": r"\chi", "ψ": r"\psi", "ω": r"\omega",
    "±": r"\pm", "∞": r"\infty", "†": r"^\dagger", "½": r"\frac12", "¼": r"\frac14", "¾": r"\frac34", "∇": r"\nabla",
    "→": r"\rightarrow", "−": "-", "·": r"\cdot", "‖": r"\|", "×": r"\times", "≥": r"\geq", "≤": r"\leq", "|": "|",
    "<": "<", ">": ">",
}  # fmt: skip
_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"${command}$" for letter, command in _MATHS.items()},
    **{letter: f"\\textsuperscript{{{digit}}}" for digit, letter in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    "⁻": r"\textsuperscript{--}",
    **{letter: f"\\textsubscript{{{digit}}}" for digit, letter in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    "–": "--",
    "…": r"\ldots{}",
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def latex(document: Document) -> str:
    """A document that compiles on its own; each table can be taken out as it is."""
    tables = "\n".join(table_latex(table) for table in document.tables if table.has_numbers)
    return (
        "\\documentclass{article}\n\\usepackage[utf8]{inputenc}\n\\usepackage{booktabs,graphicx}\n"
        "\\usepackage[margin=2cm,landscape]{geometry}\n\\begin{document}\n"
        f"\\section*{{{escape(document.title)}}}\n{escape(document.summary)}\n\n{tables}\\end{{document}}\n"
    )


def number_latex(number: Number, digits: int, *, comparable: bool) -> str:
    """``\\textbf{51.7}$_{\\pm 0.1}$``; beside it the paper's number where it can be compared."""
    if number.mean is None:
        return escape(number.words) or "--"
    text = written(number.mean, digits).replace(",", "{,}")
    text = f"\\textbf{{{text}}}" if number.best else text
    deviation = f"$_{{\\pm {written(number.std, digits)}}}$" if number.std is not None else ""
    printed = written(number.printed, digits) if comparable and number.printed is not None else ""
    small = "".join(f" {{\\scriptsize({word})}}" for word in (number.partial, printed) if word)
    return text + deviation + "$^\\dagger$" * number.collapsed + small


def table_latex(table: Table) -> str:
    """One ``table`` environment; rows without any number are left out, models are set apart by rules."""
    rows = [row for row in table.rows if any(number.mean is not None for number in row.numbers)]
    shape = "l" * len(table.row_names) + "r" * len(table.columns)
    heading = " & ".join(map(escape, (*table.row_names, *(column.label for column in table.columns))))
    body: list[str] = []
    for place, row in enumerate(rows):
        if place and len(row.labels) > 1 and row.labels[0] != rows[place - 1].labels[0]:
            body.append("\\midrule")
        numbers = [
            number_latex(number, column.digits, comparable=table.comparable)
            for number, column in zip(row.numbers, table.columns, strict=True)
        ]
        body.append(" & ".join([*map(escape, row.labels), *numbers]) + " \\\\")
    caption = f"{escape(table.title)}. {escape(table.unit)}{'; ' if table.unit else ''}{escape(table.subtitle)}."
    if table.comparable:
        caption += " In brackets: the paper's."
    caption += "".join(f" {escape(note)}" for note in table.notes)
    return (
        "\\begin{table}[htbp]\n\\centering\n"
        f"\\caption{{{caption}}}\n\\label{{tab:{table.name}}}\n"
        f"\\resizebox{{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}}{{!}}{{%\n\\begin{{tabular}}{{{shape}}}\n"
        f"\\toprule\n{heading} \\\\\n\\midrule\n" + "\n".join(body) + "\n\\bottomrule\n\\end{tabular}}\n\\end{table}\n"
    )
