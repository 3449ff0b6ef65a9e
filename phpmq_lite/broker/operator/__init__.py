"""Operator commands: functions that take the broker, a reply callback and an audit entry."""
