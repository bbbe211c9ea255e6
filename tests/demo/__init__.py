"""Tests of instep.demo."""
