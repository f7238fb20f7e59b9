"""Decisions beside other engines, in one process and over HTTP."""
