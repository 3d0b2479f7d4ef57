"""Studies of methods: trainings over several seeds, their results, and the tables made of them."""
