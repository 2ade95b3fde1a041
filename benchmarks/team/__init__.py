"""What a team costs a server: checking who asks, refusing who may not, and being there for many at once."""
