"""Tests of instep.reconcile."""
