"""What every package may use: outputs, and the one HTTP client."""
