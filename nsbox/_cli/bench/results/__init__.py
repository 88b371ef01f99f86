"""What a benchmark has measured, and on which machine: figures, the table of them, a picture."""
