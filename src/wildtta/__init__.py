"""wildtta: test-time adaptation that does not collapse.

    model = wildtta.adapt(network)
    logits = model(images)

The config classes below are the methods; :func:`methods` lists their names. :func:`zero_shot` makes a classifier of an
encoder and class embeddings, :func:`log_steps` follows an adapter in a logger. ``Method``, ``GradientMethod`` and the types
after them are what an author of a method needs.
"""

from wildtta.adapt import adapt
from wildtta.adapter import Adapter
from wildtta.fleet import Fleet
from wildtta.guard import Guard
from wildtta.methods.base import Method, answer_with
from wildtta.methods.bn_adapt import BNAdapt
from wildtta.methods.cmf import CMF
from wildtta.methods.come import COME
from wildtta.methods.cotta import CoTTA
from wildtta.methods.dda.method import DDA
from wildtta.methods.deyo import DeYO
from wildtta.methods.eata import EATA, ETA
from wildtta.methods.foa.method import FOA
from wildtta.methods.gradient import EntropyMethod, GradientMethod
from wildtta.methods.lame import LAME
from wildtta.methods.memo import MEMO
from wildtta.methods.neo import NEO
from wildtta.methods.none import NoAdaptation
from wildtta.methods.options import option
from wildtta.methods.poem import POEM
from wildtta.methods.rdumb import RDumb
from wildtta.methods.recap import ReCAP
from wildtta.methods.registry import methods, register
from wildtta.methods.roid import ROID
from wildtta.methods.rotta import RoTTA
from wildtta.methods.sar import SAR
from wildtta.methods.sar2.method import SAR2, SAR2Efficient
from wildtta.methods.shot import SHOT
from wildtta.methods.spa import SPA
from wildtta.methods.steady.method import Steady
from wildtta.methods.t3a import T3A
from wildtta.methods.tent import InfoMax, Tent
from wildtta.methods.ttt.method import TTT
from wildtta.methods.zerosiam import ZeroSiam
from wildtta.step.engine import Engine
from wildtta.step.loop import Gradient, Loss, Selection
from wildtta.step.report import Answer, Output, StepReport
from wildtta.step.selective_reset import ASR
from wildtta.tracking import log_steps
from wildtta.zero_shot import zero_shot

__version__ = "0.2.0"
__all__ = [
    "ASR",
    "CMF",
    "COME",
    "DDA",
    "EATA",
    "ETA",
    "FOA",
    "LAME",
    "MEMO",
    "NEO",
    "POEM",
    "ROID",
    "SAR",
    "SAR2",
    "SHOT",
    "SPA",
    "T3A",
    "TTT",
    "Adapter",
    "Answer",
    "BNAdapt",
    "CoTTA",
    "DeYO",
    "Engine",
    "EntropyMethod",
    "Fleet",
    "Gradient",
    "GradientMethod",
    "Guard",
    "InfoMax",
    "Loss",
    "Method",
    "NoAdaptation",
    "Output",
    "RDumb",
    "ReCAP",
    "RoTTA",
    "SAR2Efficient",
    "Selection",
    "Steady",
    "StepReport",
    "Tent",
    "ZeroSiam",
    "adapt",
    "answer_with",
    "log_steps",
    "methods",
    "option",
    "register",
    "zero_shot",
]
