"""The same training as several tools have it, each as their own pages advise."""
