"""Indexes over compressed vectors: lookup tables, the scan, segments in memory and on disk."""
