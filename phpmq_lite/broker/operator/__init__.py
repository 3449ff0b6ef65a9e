"""Commands of an operator: each a function of the broker, with a reply and an audit entry."""
