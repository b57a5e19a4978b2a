"""What can be seen: records, without a word about how they are shown."""
