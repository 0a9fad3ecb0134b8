"""Distribution matching: features of real and synthetic pairs agree under teachers."""
