"""Tickdown: a scheduler whose tasks are Markdown files."""

VERSION = "0.1.0"
