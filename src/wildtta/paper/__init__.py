"""The paper as data and experiments: its printed numbers, its 27 tables and 14 figures, and its claims as checks."""

from wildtta.paper.claim import Claim, Outcome, decide
from wildtta.paper.claims import claims, outcomes
from wildtta.paper.experiment import Experiment, NotRun, Spot, Value, View, unique
from wildtta.paper.printed import PrintedTable, printed, printed_tables
from wildtta.paper.registry import experiments, select
from wildtta.paper.settings import WHERE, Network, Scale, Setting, Where, setting

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
    "Value",
    "View",
    "Where",
    "claims",
    "decide",
    "experiments",
    "outcomes",
    "printed",
    "printed_tables",
    "select",
    "setting",
    "unique",
]
