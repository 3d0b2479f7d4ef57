"""Studies of methods: training runs with several seeds, their results, and tables of them."""
