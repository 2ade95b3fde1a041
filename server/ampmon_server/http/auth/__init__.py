"""Access control: tokens, one-time links, cookies, page sessions, and the guard in front of every route."""
