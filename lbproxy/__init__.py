"""lbproxy: a layer-7 sticky load-balancing reverse proxy."""

__version__ = "0.1.0"
