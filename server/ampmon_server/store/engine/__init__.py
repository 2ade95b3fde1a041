"""The databases that a store can have, and how it talks to each."""
