"""Export of pairs to the files of other trainers and of dataset libraries."""
