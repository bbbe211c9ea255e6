"""Tests of instep.operate."""
