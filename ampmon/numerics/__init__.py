"""Number formats, the exponent histogram and the error of samples: pure functions without torch."""
