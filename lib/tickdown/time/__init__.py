"""Durations, zones and instants: as people write them and as they are stored."""
