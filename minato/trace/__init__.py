"""Seeing inside a loader."""
