"""The estimators: gk-means and, as gk-means under constraints, its rivals."""
