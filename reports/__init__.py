"""From the records of a study to tables, charts and pages. Reads records only."""
