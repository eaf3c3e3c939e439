"""Holds objects and the chart against what their makers publish; needs npm and PyPI."""
