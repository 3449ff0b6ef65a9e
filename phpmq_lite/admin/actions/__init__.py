"""Operator actions on messages: single-message actions, selections, bulk jobs and undo."""
