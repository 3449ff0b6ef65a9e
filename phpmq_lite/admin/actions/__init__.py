"""Operator actions: single actions, selections, bulk jobs, undo."""
