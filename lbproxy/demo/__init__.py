"""Embedded demo backends and traffic."""
