"""What a server does beside its requests: writes, judges, sends, forwards and prunes."""
