"""Models that went on from one start with batches of their own, made one: their statistics add."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import reduce

import numpy as np

from .._parallel import Workers
from .._validation import check_n_jobs
from ..dictionaries import code_dtype
from ..streaming import Seen, solved
from .base import AdditiveQuantizer


def merge(models: Sequence[AdditiveQuantizer]) -> AdditiveQuantizer:
    """One model that has seen the batches of all.

    Parameters
    ----------
    models : sequence of fitted estimators
        Models of one start (``mark_start``, or one fit) that went on by ``partial_fit``, with the same decay for as
        many batches.

    Returns
    -------
    A new estimator with the settings and the ``history_`` of the first, without ``codes_``.

    Examples
    --------
    >>> import copy
    >>> import gkmeans as gk
    >>> learn = gk.datasets.load_sample().learn[:3000]
    >>> one = gk.GroupKMeans(2, 16, relaxation=0, random_state=0).fit(learn[:1000]).mark_start()
    >>> other = copy.deepcopy(one)
    >>> both = gk.merge([one.partial_fit(learn[1000:2000]), other.partial_fit(learn[2000:])])
    >>> both.relative_distortion(learn) < other.relative_distortion(learn)
    True
    """
    if not len(models):
        raise ValueError("models is empty; pass at least one")
    for i, model in enumerate(models):
        if not isinstance(model, AdditiveQuantizer):
            raise TypeError(
                f"model {i} is a {type(model).__name__}; pass a GroupKMeans or another estimator of gkmeans"
            )
        if not hasattr(model, "seen_"):
            raise ValueError(
                f"model {i} keeps no statistics; call mark_start on the start and partial_fit on each copy"
            )
    first = models[0]
    for i, model in enumerate(models):
        if type(model) is not type(first) or model.seen_.digest != first.seen_.digest:
            raise ValueError(
                f"models 0 and {i} have different starts, so their codewords do not mean the same; merge models that "
                "went on from one: call mark_start, save, and load that file for each. A model whose data turned, so "
                "that it was fitted anew, has a start of its own: leave it out, or use decay=1"
            )
        if model.seen_.weight != first.seen_.weight:
            raise ValueError(
                f"the start counts {first.seen_.weight:g} in model 0 and {model.seen_.weight:g} in model {i}; use the "
                "same decay for equally many batches in all"
            )
    seen = reduce(Seen.merged, (model.seen_ for model in models))
    with Workers(check_n_jobs(first.n_jobs)) as workers:
        chain = solved(first._links()[0], seen, workers)
    out = copy.copy(first)
    C, K = first.dictionaries_.shape[:2]
    out._keep(out._learned(chain, np.empty((0, C), code_dtype(K))), first.history_.tolist(), first.n_iter_)
    del out.codes_
    out.seen_ = seen
    for name in ("_held", "_turn"):
        out.__dict__.pop(name, None)
    return out
