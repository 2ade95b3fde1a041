"""HTTP: the application, its routes, who may come in, and the process that serves it."""
