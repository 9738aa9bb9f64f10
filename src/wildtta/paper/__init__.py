"""The paper: its printed numbers as data, its 27 tables and 14 figures as experiments, its claims as checks."""

from wildtta.paper.experiment import Experiment, Spot, needs, unique
from wildtta.paper.printed import printed, printed_tables
from wildtta.paper.registry import claims, experiments, select
from wildtta.paper.sections import asked, section, sections
from wildtta.paper.settings import Network, Setting, Where, setting
from wildtta.paper.view import View, decide

__all__ = [
    "Experiment",
    "Network",
    "Setting",
    "Spot",
    "View",
    "Where",
    "asked",
    "claims",
    "decide",
    "experiments",
    "needs",
    "printed",
    "printed_tables",
    "section",
    "sections",
    "select",
    "setting",
    "unique",
]
