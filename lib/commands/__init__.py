"""The commands, by what they are for: `act` changes something, `look` shows something, `check` finds what is wrong."""
