"""The run directory: names, the ledger, verdicts, and what follows from them."""
