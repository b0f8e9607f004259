"""Starts of the training: random, k-means on residuals, hierarchical, Sec. 2.3."""
