"""The page of a report: template, style and script."""
