"""Compiled steps over torch's operator database."""
