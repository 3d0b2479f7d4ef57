"""What several tests share: tiny models and data, trainings, processes."""
