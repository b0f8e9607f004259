"""Group K-Means: vectors compressed to a few bytes, each the sum of one codeword from each of C dictionaries."""

from . import datasets, metrics
from ._files import FileError
from ._validation import DataWarning
from .estimators.group import GroupKMeans
from .store import load

__version__ = "0.1.0"
__all__ = ["DataWarning", "FileError", "GroupKMeans", "datasets", "load", "metrics"]
