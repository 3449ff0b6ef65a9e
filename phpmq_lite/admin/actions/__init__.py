"""What an operator can do: single actions, selections, bulk jobs, undo."""
