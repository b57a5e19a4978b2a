"""`python -m tickdown`."""

from tickdown.entry import start

start()
