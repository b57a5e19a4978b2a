"""Everything Tickdown remembers, in SQLite. One module per subject; each verb is one transaction."""
