"""The paper: its printed numbers as data, its 27 tables and 14 figures as experiments, its claims as checks."""

from wildtta.paper.experiment import Claim, Experiment, Spot, unique
from wildtta.paper.printed import PrintedTable, printed, printed_tables
from wildtta.paper.registry import claims, experiments, select
from wildtta.paper.sections import asked, section, sections, table_of
from wildtta.paper.settings import WHERE, Network, Scale, Setting, Where, setting
from wildtta.paper.view import NotRun, TooShort, Value, View, decide
from wildtta.report.outcome import Outcome

__all__ = [
    "WHERE",
    "Claim",
    "Experiment",
    "Network",
    "NotRun",
    "Outcome",
    "PrintedTable",
    "Scale",
    "Setting",
    "Spot",
    "TooShort",
    "Value",
    "View",
    "Where",
    "asked",
    "claims",
    "decide",
    "experiments",
    "printed",
    "printed_tables",
    "section",
    "sections",
    "select",
    "setting",
    "table_of",
    "unique",
]
