"""The ways out, one module each: a channel sends a `Message`, or raises `SendError`."""
