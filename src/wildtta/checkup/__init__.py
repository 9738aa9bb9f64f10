"""Will adaptation help on this network and these images? A few minutes tell.

    from wildtta.checkup import check
    print(check(network, images, labels).text())

1. :mod:`~wildtta.checkup.facts`: what the network is made of.
2. :mod:`~wildtta.checkup.answers`: how sure it is of clean and corrupted images, and how far it agrees with itself.
3. :mod:`~wildtta.checkup.trials`: methods on streams of the images' corrupted copies; :mod:`~wildtta.checkup.gain` has
   what they gain, with its interval.
4. :mod:`~wildtta.checkup.advice`: what follows from all that. :mod:`~wildtta.checkup.text` writes it out.

:mod:`~wildtta.checkup.checking` does it all; :mod:`~wildtta.checkup.plan` fits it into some minutes, and
:mod:`~wildtta.checkup.sample` draws images from a folder. On the command line: ``wildtta check``.
"""

from wildtta.checkup.checking import check
from wildtta.checkup.result import Checkup
from wildtta.checkup.trials import SHIFTS, TRIALS, Trial

__all__ = ["SHIFTS", "TRIALS", "Checkup", "Trial", "check"]
