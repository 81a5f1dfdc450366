"""What is shown: text for a terminal, shell, HTML, metrics."""
