"""Starting the ranks: an srun step, one agent per node, or one process here."""
