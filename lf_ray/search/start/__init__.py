"""What happens before a sweep begins: what is refused, and what is gone on with."""
