"""What happens when things die, end, or run out."""
