"""The words that everything else uses: states, records, errors, safe text. Imports nothing of the program."""
