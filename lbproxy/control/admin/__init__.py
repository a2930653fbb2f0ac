"""The admin API and page."""
