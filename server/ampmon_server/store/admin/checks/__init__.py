"""The checks of `ampmon db verify`, one module per subject. Each check reads data and yields defects."""
