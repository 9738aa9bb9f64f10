"""Measures of a run: accuracy, calibration, collapse, cost and the health of the representation."""

from wildtta.metrics.calibration import adaptive_calibration_error, expected_calibration_error
from wildtta.metrics.collapse import collapsed, row_collapsed
from wildtta.metrics.cost import Stopwatch, peak_memory, reset_peak_memory
from wildtta.metrics.representation import FeatureStatistics, batch_redundancy_and_inequity, features, tsne
from wildtta.metrics.series import Series
from wildtta.metrics.stream import StreamMeter, StreamRecord
from wildtta.metrics.surface import entropy_gradient_scatter, entropy_surface, filter_normalised_direction

__all__ = [
    "FeatureStatistics",
    "Series",
    "Stopwatch",
    "StreamMeter",
    "StreamRecord",
    "adaptive_calibration_error",
    "batch_redundancy_and_inequity",
    "collapsed",
    "entropy_gradient_scatter",
    "entropy_surface",
    "expected_calibration_error",
    "features",
    "filter_normalised_direction",
    "peak_memory",
    "reset_peak_memory",
    "row_collapsed",
    "tsne",
]
