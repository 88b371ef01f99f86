"""The environment that an interpreter has: its packages, and from where a warm interpreter may load them."""
