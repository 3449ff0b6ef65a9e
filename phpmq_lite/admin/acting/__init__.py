"""What an operator can do: single actions, frozen selections, work in the background."""
