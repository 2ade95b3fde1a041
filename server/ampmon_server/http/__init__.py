"""HTTP: the application, its routes, access control, and the process that serves it."""
