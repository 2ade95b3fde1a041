"""Number formats, the exponent histogram and how sure a sample is. Pure; no torch."""
