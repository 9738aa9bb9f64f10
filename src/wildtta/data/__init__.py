"""Images and labels: readers, preprocessing protocols, corruptions, loading, and the embedded glyphs."""

from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from wildtta.data.catalogue import DATA_NAMES, open_data, open_domains
from wildtta.data.class_subset import restrict_classes
from wildtta.data.corrupted import Corrupted
from wildtta.data.encoded import EncodedImages
from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.folder import folder
from wildtta.data.image_set import ArrayImages, ImageSet, require_classes
from wildtta.data.imagenet_c import corruptions_in, imagenet_c
from wildtta.data.imagenet_classes import imagenet_classes
from wildtta.data.imagenet_variants import imagenet, imagenet_a, imagenet_r, imagenet_sketch, imagenet_v2
from wildtta.data.loading import LoadedBatch, Loader, StreamLoader
from wildtta.data.preprocessing import PROTOCOLS, InputProtocol, input_protocol, preprocess
from wildtta.data.shards import shards

__all__ = [
    "CORRUPTIONS",
    "DATA_NAMES",
    "EXTRA_CORRUPTIONS",
    "PROTOCOLS",
    "ArrayImages",
    "BrokenImage",
    "Corrupted",
    "DataError",
    "EncodedImages",
    "ImageSet",
    "InputProtocol",
    "LoadedBatch",
    "Loader",
    "StreamLoader",
    "corrupt",
    "corruptions_in",
    "folder",
    "imagenet",
    "imagenet_a",
    "imagenet_c",
    "imagenet_classes",
    "imagenet_r",
    "imagenet_sketch",
    "imagenet_v2",
    "input_protocol",
    "open_data",
    "open_domains",
    "preprocess",
    "require_classes",
    "restrict_classes",
    "shards",
]
