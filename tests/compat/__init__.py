"""One body, two loaders: what torch's DataLoader does, minato's does too."""
