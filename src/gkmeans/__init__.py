"""Group K-Means: vectors compressed to a few bytes, each the sum of one codeword from each of C dictionaries."""

from . import datasets, metrics, vectors
from ._files import FileError
from ._validation import DataWarning
from .batches import Batches
from .encode_files import encode_file
from .estimators.cartesian import CartesianKMeans
from .estimators.group import GroupKMeans
from .estimators.merging import merge
from .estimators.optimized_cartesian import OptimizedCartesianKMeans
from .index.flat import FlatIndex
from .index.ivf import IVFIndex
from .index.opened import open_index
from .index.suggest import suggest
from .interop.faiss import from_faiss, to_faiss
from .store import load

__version__ = "0.1.0"
__all__ = [
    "Batches",
    "CartesianKMeans",
    "DataWarning",
    "FileError",
    "FlatIndex",
    "GroupKMeans",
    "IVFIndex",
    "OptimizedCartesianKMeans",
    "datasets",
    "encode_file",
    "from_faiss",
    "load",
    "merge",
    "metrics",
    "open_index",
    "suggest",
    "to_faiss",
    "vectors",
]
