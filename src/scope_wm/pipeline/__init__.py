"""The whole pipeline of one task: its stages in order, how long they may take, and running them."""
