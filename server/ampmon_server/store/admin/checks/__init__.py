"""What `ampmon db verify` holds a database to, by subject: each check reads, and yields what is not as it must be."""
