"""What every run, heal and reading of comments works with: settings, store, log, budgets, edits of task files."""
