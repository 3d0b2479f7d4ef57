"""What every package uses: errors, files, text and paths; nothing here needs torch."""
