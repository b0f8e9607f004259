"""suggest: what it tries, what it chooses, and what it refuses; evaluate with rescoring."""

import dataclasses
import logging

import numpy as np
import pytest

import gkmeans as gk
from conftest import correlated, message_of
from gkmeans.index import suggest as module


@pytest.fixture(autouse=True)
def short(monkeypatch):
    group = {"order": 1, "relaxation": 0, "effort": 0, "max_iter": 3, "init_iter": 2, "n_jobs": 1}
    monkeypatch.setattr(module, "_QUICK", {"CartesianKMeans": {"max_iter": 3, "n_jobs": 1}, "GroupKMeans": group})


@pytest.fixture
def X(rng):
    return correlated(rng, 700, 8)


def untimed(advice):
    return [dataclasses.replace(trial, queries_per_second=0) for trial in advice.trials]


def test_a_budget_of_bytes_is_filled_and_the_best_recall_wins(X):
    advice = gk.suggest(X, bytes_per_vector=3, random_state=0)
    assert {(t.method, t.n_dictionaries, t.n_codewords) for t in advice.trials} == {
        ("CartesianKMeans", 4, 16),
        ("GroupKMeans", 4, 16),
    }
    assert {trial.bytes_per_vector for trial in advice.trials} == {3}
    assert advice.best.recall == max(trial.recall for trial in advice.trials)
    assert all(trial.queries_per_second > 0 for trial in advice.trials)


def test_the_bytes_are_those_of_an_index_and_the_estimator_is_ready(X):
    advice = gk.suggest(X, bytes_per_vector=3, metric="ip", random_state=0)
    index = gk.FlatIndex(advice.estimator().fit(X), "ip")
    index.add(X[:640])
    assert index.evaluate(X[:5], 3, vectors=X).bytes_per_vector == advice.best.bytes_per_vector == 3


def test_many_rows_try_256_codewords_too():
    assert module._codewords(256 * 8) == [256, 16]
    assert next(iter(module._of_bytes(3, 5000))) == ("CartesianKMeans", 3, 256)


def test_a_recall_is_reached_with_the_fewest_bytes_that_reach_it(X):
    advice = gk.suggest(X, recall=0.6, k=5, metric="cosine", random_state=0)
    assert advice.best.recall >= 0.6
    cheaper = [trial for trial in advice.trials if trial.bytes_per_vector < advice.best.bytes_per_vector]
    assert cheaper
    assert all(trial.recall < 0.6 for trial in cheaper)


def test_rescoring_needs_fewer_bytes(X):
    plain, rescored = (gk.suggest(X, recall=0.7, k=5, rescore=r, random_state=0) for r in (False, True))
    assert rescored.best.bytes_per_vector < plain.best.bytes_per_vector


def test_a_recall_that_is_not_reached_says_the_best_that_was(X, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    said = message_of(lambda: gk.suggest(X, recall=1.0, random_state=0))
    assert "recall=1 was not reached" in said
    assert "came to 0." in said
    assert "rescore=True" in said


def test_the_same_seed_gives_the_same_trials(X):
    first, again = (gk.suggest(X, bytes_per_vector=2, random_state=3) for _ in range(2))
    assert untimed(first) == untimed(again)
    assert str(first.estimator()) == str(again.estimator())


def test_the_text_names_the_best_and_every_trial(X):
    advice = gk.suggest(X, bytes_per_vector=2, random_state=0)
    text = repr(advice)
    assert text.startswith(f"use {advice.best}: the best recall@10 in 2 bytes")
    assert text.count("KMeans(") == 1 + len(advice.trials)
    assert text.count("→") == 1
    assert "630 vectors" in text


def test_long_trials_are_logged(X, monkeypatch, caplog):
    monkeypatch.setattr(module, "_SAY_AFTER", 0.0)
    with caplog.at_level(logging.INFO, "gkmeans"):
        gk.suggest(X, bytes_per_vector=2, random_state=0)
    assert sum("suggest: " in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "pass one of them"),
        ({"bytes_per_vector": 8, "recall": 0.5}, "pass one of them"),
        ({"bytes_per_vector": 1}, "bytes_per_vector=1"),
        ({"bytes_per_vector": 1000}, "bytes_per_vector=1000"),
        ({"recall": 0}, "recall=0 is not a share"),
        ({"recall": 1.5}, "recall=1.5 is not a share"),
        ({"recall": np.nan}, "recall=nan is not a share"),
        ({"recall": True}, "recall=True is not a share"),
        ({"recall": 0.5, "metric": "l1"}, "metric='l1'"),
        ({"recall": 0.5, "k": 10**6}, "k=1000000"),
        ({"recall": 0.5, "sample": 3}, "sample=3"),
    ],
)
def test_options_that_make_no_sense_are_refused(X, options, said):
    assert said in message_of(lambda: gk.suggest(X, **options))


def test_few_or_odd_vectors_are_refused(X):
    assert "at least 256" in message_of(lambda: gk.suggest(X[:100], recall=0.5))
    assert "shape (700,)" in message_of(lambda: gk.suggest(X[:, 0], recall=0.5))


def test_evaluate_measures_rescored_answers_and_finds_the_truth_from_their_vectors(X):
    est = gk.GroupKMeans(2, 16, init="random", order=1, max_iter=2, relaxation=0, effort=0, random_state=0).fit(X)
    index = gk.FlatIndex(est)
    index.add(X)
    plain = index.evaluate(X[:50], 5, vectors=X).recall
    assert plain < index.evaluate(X[:50], 5, rescore=X).recall <= 1
    assert index.evaluate(X[:50], 5, rescore=X, oversample=200).recall == 1
    assert "pass truth, or vectors" in message_of(lambda: index.evaluate(X[:50], 5))
