"""When a task is due: cron lines, phrases, blackouts, chains, each with one reader. No clock, no disk."""
