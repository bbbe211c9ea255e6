"""STORED: one file per database behind one narrow interface; the ledger."""
