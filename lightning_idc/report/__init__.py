"""What a person sees of a captioner: tables, examples, contact sheets."""
