"""One program per question about speed; `make bench` asks them all."""
